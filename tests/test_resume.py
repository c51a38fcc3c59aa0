"""Jobs that die. The real command is killed with SIGKILL, again and again, and then resumed.

The workload writes a line whenever it is asked to judge a candidate, so what was executed is known from
outside: the store's word is not taken for it.
"""

import signal
import time
from collections import Counter

import pytest
from commands import TINY, command, start, write

from autoprec.errors import StoreError
from autoprec.plan import Plan
from autoprec.store.store import Store

LOGS = (
    TINY
    + """
class Logs(Tiny):
    def quality(self, model, split="search"):
        ran = signature(model)
        if ran is not None:
            with open("ran.log", "a") as log:
                log.write(f"{split} {ran}\\n")
            import time
            time.sleep(0.25)  # a moment in which to be killed
        return 1.0 if ran is None else 1.0 - 0.01 * len(ran)
"""
)

KILLS = (
    TINY
    + """
import signal

class Kills(Tiny):
    def build_model(self):
        return nn.Sequential(nn.Linear(64, 64))
    def quality(self, model):
        if signature(model) == "bf16":
            with open("ran.log", "a") as log:
                log.write("search bf16\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0
"""
)

TUNE = (
    "tune", "mine.py:Logs", "--searcher", "random", "--objective", "memory", "--out", ".",
    "--formats", "fp32,bf16,fp16_weight,int8_weight_only",
)  # fmt: skip


def executed(folder):
    """Return (split, formats) of every judgement of a candidate, in order."""
    path = folder / "ran.log"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [
        (split, formats.replace("-", "fp32")) for split, formats in lines if not lossless(formats.split(","))
    ]


def lossless(formats):
    """Say whether nothing but fp32 runs: such a plan may look like the model as it came: not counted."""
    return set(formats) <= {"-", "fp32"}


def judged(runs):
    """Return what `executed` should say of these runs."""
    return Counter(
        ("final" if run.fresh else "search", ",".join(run.formats))
        for run in runs
        if not lossless(run.formats)
    )


def wait(process, reached):
    """Wait until something is reached, or the process has ended by itself."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if reached():
            return
        time.sleep(0.02)
    raise AssertionError(f"not reached: {process.communicate()}")


def jobs(folder):
    try:
        with Store.open(str(folder / "store.db")) as store:
            return store.jobs()
    except StoreError:  # it is just being made
        return []


def kept(folder):
    """Return the runs of the only job in the store."""
    with Store.open(str(folder / "store.db")) as store:
        (job,) = store.jobs()
        return store.job_runs(job.id)


def kill(process):
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.timeout(900)  # five processes that each load torch, on a machine that may be busy
def test_a_job_killed_at_any_moment_goes_on_without_measuring_anything_again(tmp_path):
    write(tmp_path, "mine.py", LOGS)

    def profiling():
        return any(job.phase == "profiling" for job in jobs(tmp_path))

    def searched(count):
        return lambda: sum(split == "search" for split, _ in executed(tmp_path)) >= count

    def won():
        return any(split == "final" for split, _ in executed(tmp_path))

    in_flight = Counter()
    previous, resume = [], []
    for moment, delay in ((profiling, 0.3), (searched(2), 0.0), (searched(5), 0.2), (won, 0.0)):
        before = len(executed(tmp_path))
        process = start(tmp_path, *TUNE, "--budget", "10", *resume)
        wait(process, moment)
        time.sleep(delay)
        kill(process)
        resume = ["--resume"]
        runs = kept(tmp_path)
        # Nothing that was kept is lost or changed.
        assert runs[: len(previous)] == previous
        # All that was executed was kept, but for what was in flight.
        lost = Counter(executed(tmp_path)[before:]) - judged(runs[len(previous) :])
        assert lost.total() <= 1
        in_flight += lost
        previous = runs

    with Store.open(str(tmp_path / "store.db")) as store:
        (job,) = store.jobs()
        left = f"{job.elapsed_seconds + 10:.0f}s"
    code, out, err = command(tmp_path, *TUNE, "--budget", left, *resume)
    assert (code, err) == (0, "")
    assert "starting a new one" not in out
    runs = kept(tmp_path)
    assert runs[: len(previous)] == previous
    measured = Counter((run.plan_key, run.fresh) for run in runs)
    assert set(measured.values()) == {1}
    assert all(run.status == "ok" and not run.cached for run in runs)
    # By the workload's own account: each plan once, and once more where it was in flight.
    assert Counter(executed(tmp_path)) == judged(runs) + in_flight
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.key in {run.plan_key for run in runs if run.fresh}
    assert plan.evidence.measured_runs == sum(not run.fresh for run in runs) >= 5
    with Store.open(str(tmp_path / "store.db")) as store:
        (job,) = store.jobs()
        assert job.state == "finished"
        assert store.resumable_job(job.settings_key) is None


def test_a_plan_that_kills_the_process_twice_has_failed_and_the_job_goes_on(tmp_path):
    write(tmp_path, "mine.py", KILLS)
    tune = (
        "tune", "mine.py:Kills", "--searcher", "random", "--objective", "memory", "--budget", "60",
        "--formats", "fp32,bf16", "--out", ".",
    )  # fmt: skip
    for more in ([], ["--resume"]):
        assert command(tmp_path, *tune, *more)[0] == -signal.SIGKILL
    code, out, err = command(tmp_path, *tune, "--resume")
    assert (code, err) == (0, "")
    assert "1 plans failed; first: the process died 2 times while this plan ran" in out
    assert len(executed(tmp_path)) == 2
    (failed,) = [run for run in kept(tmp_path) if run.status == "failed"]
    assert failed.formats == ("bf16",)
    assert Plan.load(tmp_path / "plan.json").formats == {"0": "fp32"}


def test_a_kernel_that_kills_the_process_while_it_is_profiled_is_left_out_after_two_deaths(tmp_path):
    kills = """
    def run(self, model, inputs):
        if getattr(model[0], "implementation_name", "") == "upcast":
            super().quality(model)
        return model(inputs)
    def quality(self, model):
        return 1.0
"""
    kills = "\nclass Kills(Kills):" + kills
    write(tmp_path, "mine.py", KILLS.replace('== "bf16":', '== "fp16_weight":') + kills)
    tune = (
        "tune", "mine.py:Kills", "--searcher", "random", "--objective", "memory", "--budget", "60",
        "--formats", "fp32,bf16,fp16_weight", "--out", ".",
    )  # fmt: skip
    for more in ([], ["--resume"]):
        assert command(tmp_path, *tune, *more)[0] == -signal.SIGKILL
    code, out, err = command(tmp_path, *tune, "--resume")
    assert (code, err) == (0, ""), out
    assert len(executed(tmp_path)) == 2
    (unit,) = Plan.load(tmp_path / "plan.json").units
    assert unit.format == "bf16" or unit.modules[0].implementation != "upcast"


def test_a_job_that_runs_is_not_run_by_a_second_process(tmp_path):
    write(tmp_path, "mine.py", LOGS)
    process = start(tmp_path, *TUNE, "--budget", "40")
    wait(process, lambda: len(executed(tmp_path)) >= 1)
    code, _, err = command(tmp_path, *TUNE, "--budget", "40", "--resume")
    assert code == 2 and "is being run by another process; wait until it ends" in err
    assert jobs(tmp_path)[0].state == "running"
    kill(process)


def test_a_finished_job_is_not_resumed_and_its_runs_are_taken_over(tmp_path):
    write(tmp_path, "mine.py", LOGS)
    tune = ("tune", "mine.py:Logs", "--searcher", "random", "--objective", "memory", "--formats", "fp32,bf16",
            "--group", ".*", "--out", ".", "--budget", "20s")  # fmt: skip
    first = command(tmp_path, *tune)
    searched = [line for line in executed(tmp_path) if line[0] == "search"]
    second = command(tmp_path, *tune, "--resume")
    assert first[0] == second[0] == 0
    assert "no unfinished job of these settings is in the store: starting a new one" in second[1]
    assert [line for line in executed(tmp_path) if line[0] == "search"] == searched
    with Store.open(str(tmp_path / "store.db")) as store:
        new, old = store.jobs()
        assert {run.plan_key for run in store.job_runs(new.id) if run.cached} == {
            run.plan_key for run in store.job_runs(old.id) if not run.fresh
        }
        # The winners are measured fresh in every job.
        assert not any(run.cached for run in store.job_runs(new.id) if run.fresh)


def test_a_changed_workload_is_not_resumed(tmp_path):
    write(tmp_path, "mine.py", LOGS)
    process = start(tmp_path, *TUNE, "--budget", "40")
    wait(process, lambda: len(executed(tmp_path)) >= 2)
    kill(process)
    write(tmp_path, "mine.py", LOGS.replace("1.0 - 0.01", "1.0 - 0.02"))
    code, _, err = command(tmp_path, *TUNE, "--budget", "40", "--resume")
    assert code == 2 and err.count("\n") == 1
    assert "cannot be resumed: its workload, the device or a library version has changed since" in err
    write(tmp_path, "mine.py", LOGS)
    code, _, err = command(tmp_path, *TUNE, "--budget", "2s", "--resume")
    assert (code, err) == (0, "")
    assert len(jobs(tmp_path)) == 1
