"""A process that writes measured runs, for the tests that kill it or start several.

Arguments: the store's URL, the job's id, and the prefix and number of the runs. Says each run's plan key
once `finish_run` has returned.
"""

import sys

from store_samples import make_context, make_job, make_run

from autoprec.store.store import Store

url, job_id, prefix, count = sys.argv[1:]
with Store.open(url) as store:
    key = store.save_context(make_context())
    store.create_job(make_job(job_id, created_at="2026-01-01T00:00:00Z", context_key=key))
    print("open", flush=True)
    for number in range(int(count)):
        plan_key = f"{prefix}-{number}"
        store.begin_run(job_id, key, plan_key, fresh=False)
        store.finish_run(job_id, key, make_run(plan_key))
        print(plan_key, flush=True)
