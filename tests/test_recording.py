import json

import numpy as np
from commands import TINY, command, write

from autoprec.envs.landscape import Landscape
from autoprec.store.store import Store


def test_a_small_space_is_recorded_whole_and_searched(tmp_path):
    write(tmp_path, "tiny.py", TINY)
    call = ["bench", "record", "tiny.py:Tiny", "--formats", "fp32,bf16", "--max-quality-drop", "0.01",
            "--out", "tiny.json.gz"]  # fmt: skip
    code, out, err = command(tmp_path, *call)
    assert code == 0, err
    assert "8 runs, every plan of the space: tiny.json.gz" in out
    found = Landscape.load(tmp_path / "tiny.json.gz")
    assert found.complete and len(found.trials) == 8 and found.max_quality_drop == 0.01
    assert all(trial.ok and np.isfinite([trial.time, trial.drop]).all() for trial in found.trials)
    # Recorded again, nothing is measured again: the figures are the same.
    assert command(tmp_path, *call)[0] == 0
    again = Landscape.load(tmp_path / "tiny.json.gz")
    assert {t.assignment: t.time for t in again.trials} == {t.assignment: t.time for t in found.trials}
    code, out, err = command(
        tmp_path, "bench", "searchers", "tiny.json.gz", "--searchers", "random", "--seeds", 2, "--runs", "8"
    )
    assert code == 0, err


def test_searchers_are_compared_live(tmp_path):
    """Plans that several searches ask for are run once, and a comparison goes on where it was."""
    write(tmp_path, "tiny.py", TINY)
    call = ["bench", "searchers", "--live", "tiny.py:Tiny", "--formats", "fp32,bf16", "--max-quality-drop",
            "0.01", "--searchers", "random,greedy", "--runs", "4,8", "--out", "live"]  # fmt: skip
    code, _, err = command(tmp_path, *call)
    assert code == 0, err
    kept = tmp_path / "live" / "searches.jsonl"
    searches = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(searches) == 4 and all(
        "tiny.py:Tiny latency in eager, live" in s["landscape"] for s in searches
    )
    with Store.open(str(tmp_path / "store.db")) as store:
        (job,) = store.jobs()
        assert job.state == "finished"
        measured = [run.plan_key for run in store.job_runs(job.id)]
    assert len(measured) == len(set(measured)) <= 8
    # Every search went through the whole space: they found the same best plan.
    assert len({found["costs"][-1] for found in searches if found["task"] == "limit"}) == 1
    assert command(tmp_path, *call)[0] == 0
    assert len(kept.read_text().splitlines()) == 4


def test_mistakes_are_one_line(tmp_path):
    write(tmp_path, "tiny.py", TINY)
    for options, message in (
        (["--runs", "0"], "runs is 0; at least 1 plan is measured"),
        (["--runtime", "all"], "searchers are compared in one runtime"),
        (["--out", "nowhere/x.json"], "its directory cannot be written to"),
    ):
        given = ["bench", "record", "tiny.py:Tiny", "--out", "x.json", *options]
        code, _, err = command(tmp_path, *given)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert message in err


def test_what_was_measured_before_ctrl_c_is_in_the_file(tmp_path):
    """The fourth judgement is interrupted, as by the user."""
    slow = (
        TINY
        + """
    def quality(self, model):
        self.judged = getattr(self, "judged", 0) + 1
        if self.judged == 4:
            raise KeyboardInterrupt
        return 1.0
"""
    )
    write(tmp_path, "tiny.py", slow)
    code, out, _ = command(
        tmp_path, "bench", "record", "tiny.py:Tiny", "--formats", "fp32,bf16", "--out", "t.json"
    )
    assert code == 130 and "the same command goes on" in out
    assert 0 < len(Landscape.load(tmp_path / "t.json").trials) < 8
