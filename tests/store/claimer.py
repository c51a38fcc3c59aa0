"""A process that measures plans which others want too, each only where it gets the claim.

Arguments: the store's URL, the job's id, and the number of plans. Begins when it is told to by a line, and
says the plans that it measured itself.
"""

import sys

from store_samples import make_context, make_run

from autoprec.store.store import Store

url, job_id, count = sys.argv[1:]
with Store.open(url) as store:
    key = make_context().key
    print("open", flush=True)
    sys.stdin.readline()
    wanted = [f"p{number}" for number in range(int(count))]
    while wanted:
        plan = wanted.pop(0)
        if store.attach_run(job_id, key, plan, searcher="rl") is not None:
            continue
        if not store.claim_run(job_id, key, plan, seconds=600):
            wanted.append(plan)
            continue
        # Another may have finished it between the look and the claim.
        if store.attach_run(job_id, key, plan, searcher="rl") is not None:
            store.abandon_run(job_id, key, plan, fresh=False)
            continue
        store.begin_run(job_id, key, plan, fresh=False)
        store.finish_run(job_id, key, make_run(plan))
        print(plan, flush=True)
