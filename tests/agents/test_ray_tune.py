"""Searchers as trials of Ray Tune, on one budget: with real Ray, on synthetic landscapes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.ray_tune import JOURNAL, Candidate, tune_agents
from autoprec.agents.searcher import Problem
from autoprec.agents.shared_runs import JournalError, SharedRuns
from autoprec.agents.warm_start import initial_plans
from autoprec.bench_tune import make_candidates, run_bench_tune
from autoprec.envs.space import Assignment, Goal, Trial
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.errors import AutoPrecError, SettingError

LANDSCAPE = synthetic_landscape(11, 6, time_noise=0.01, drop_noise=0.05)
PROBLEM = Problem(LANDSCAPE.space, LANDSCAPE.profile, Goal("latency", LANDSCAPE.max_quality_drop))
CANDIDATES = [Candidate("greedy"), Candidate("random", 3)]
BUDGET = 24
CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from test_ray_tune import BUDGET, CANDIDATES, LANDSCAPE, PROBLEM
from autoprec.agents.ray_tune import tune_agents

def evaluate(plan, searcher, log=Path(sys.argv[2]), seconds=float(sys.argv[3])):
    with log.open("a") as file:
        file.write(f"{plan}\\n")
    time.sleep(seconds)
    return LANDSCAPE.evaluate(plan, searcher)

tune_agents(PROBLEM, evaluate, CANDIDATES, BUDGET, folder=sys.argv[1], resume=True)
"""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def measured(folder: Path) -> list[list[str]]:
    """Return the plans that the journal holds a measured run of."""
    records = [json.loads(line) for line in lines(folder / JOURNAL)[1:]]
    return [record["run"]["formats"] for record in records if isinstance(record["run"], dict)]


def start(folder: Path, log: Path, seconds: float) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(log), str(seconds), str(Path(__file__).parent)],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip


def test_a_killed_search_goes_on_within_one_budget(tmp_path: Path) -> None:
    folder, log = tmp_path / "out", tmp_path / "calls"
    child = start(folder, log, 0.2)
    try:
        while len(measured(folder)) < 14:  # past the first plans: in a searcher's own runs
            assert child.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert start(folder, log, 0.0).wait() == 0

    plans = measured(folder)
    assert len(plans) == len({tuple(plan) for plan in plans}) == BUDGET
    # One call a run; the run in flight at the kill may be there twice.
    assert BUDGET <= len(lines(log)) <= BUDGET + 1

    again = tune_agents(PROBLEM, LANDSCAPE.evaluate, CANDIDATES, BUDGET, folder=folder, resume=True)
    assert measured(folder) == plans
    assert len(again.runs) == BUDGET
    first = initial_plans(PROBLEM)
    for outcome in again.outcomes:
        assert [trial.assignment for trial in outcome.trials[: len(first)]] == first
        assert len({trial.assignment for trial in outcome.trials}) == len(outcome.trials)
    # The first plans were measured for one of the two and are shared; every run has one payer.
    assert sum(outcome.paid for outcome in again.outcomes) == BUDGET
    assert sum(len(outcome.trials) for outcome in again.outcomes) >= BUDGET + len(first)
    # Successive halving: the loser got its first share, the winner the rest.
    winner, loser = sorted(again.outcomes, key=lambda outcome: -len(outcome.trials))
    assert (winner.ended, loser.ended) == ("budget spent", "halved")
    assert winner.gain >= loser.gain
    with pytest.raises(JournalError, match="of another search"):
        tune_agents(PROBLEM, _refuse, CANDIDATES[:1], BUDGET, folder=folder, resume=True)
    with pytest.raises(JournalError, match="resume it, or use another folder"):
        tune_agents(PROBLEM, _refuse, CANDIDATES, BUDGET, folder=folder)


def _refuse(plan: Assignment, searcher: str) -> Trial:
    raise AssertionError(plan)


@pytest.fixture
def runs(tmp_path: Path) -> SharedRuns:
    return SharedRuns(tmp_path / JOURNAL, "x", 2, LANDSCAPE.evaluate)


def test_ray_starts_twice_in_one_process(tmp_path: Path) -> None:
    """Ray's core keeps the first token that it was given: another one locks its own parts out."""
    program = (
        "import sys; from pathlib import Path\n"
        "from autoprec.agents.ray_process import local_ray\n"
        "for name in 'ab':\n"
        "    with local_ray(Path(sys.argv[1], name), 1, 1): print('up')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.stdout.split() == ["up", "up"], ran.stderr


def test_a_plan_is_measured_once_and_the_budget_is_kept(tmp_path: Path, runs: SharedRuns) -> None:
    one, two, three = initial_plans(PROBLEM)[:3]
    own = runs.ask("a", one, "initial")
    shared = runs.ask("b", one, "rl")
    assert own is not None
    assert shared is not None
    assert (shared.assignment, shared.time, shared.searcher) == (one, own.time, "rl")
    assert not runs.spent()
    assert runs.ask("b", two, "rl") is not None
    assert runs.spent()
    assert runs.ask("a", three, "ilp") is None
    assert runs.ask("a", two, "ilp") is not None
    assert (runs.paid("a"), runs.paid("b"), len(runs.measured())) == (1, 1, 2)
    given = {name: runs.given(name) for name in "ab"}
    runs.close()
    again = SharedRuns(tmp_path / JOURNAL, "x", 2, _refuse)
    assert {name: again.given(name) for name in "ab"} == given
    assert (again.paid("a"), again.paid("b")) == (1, 1)


def test_a_plan_that_failed_is_kept_and_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    failed = SharedRuns(path, "x", 3, lambda plan, name: Trial(plan, False, np.nan, np.nan, np.nan, name))
    plans = initial_plans(PROBLEM)
    failed.ask("a", plans[0], "initial")
    failed.ask("a", plans[1], "initial")
    failed.close()
    path.write_bytes(path.read_bytes()[:-9])
    again = SharedRuns(path, "x", 3, LANDSCAPE.evaluate)
    (trial,) = again.given("a")
    assert not trial.ok
    assert np.isnan(trial.time)
    assert again.ask("a", plans[1], "initial") is not None
    again.close()
    assert len(SharedRuns(path, "x", 3, _refuse).measured()) == 2


def test_a_damaged_journal_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    kept = SharedRuns(path, "x", 3, LANDSCAPE.evaluate)
    kept.ask("a", initial_plans(PROBLEM)[0], "initial")
    kept.close()
    whole = path.read_text()
    with path.open("a") as file:
        file.write('{"to":"a","searcher":"rl","run":7}\n')
    with pytest.raises(JournalError, match=r"line 3 of .* is not valid"):
        SharedRuns(path, "x", 3, _refuse)
    path.write_text(whole.replace("fp32", "fp33"))
    with pytest.raises(JournalError, match=r"line 2 of .* is not valid"):
        SharedRuns(path, "x", 3, _refuse)
    path.write_text(whole)
    with pytest.raises(JournalError, match="of a search of 3 runs, not 4"):
        SharedRuns(path, "x", 4, _refuse)


def test_a_breakdown_of_measuring_ends_the_budget(tmp_path: Path) -> None:
    runs = SharedRuns(tmp_path / JOURNAL, "x", 3, _refuse)
    assert runs.ask("a", initial_plans(PROBLEM)[0], "rl") is None
    assert runs.spent()
    assert "AssertionError" in str(runs.failure())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rl,grid", 1, 99, ()), "unknown searcher 'grid'"),
        (("ilp,random", 1, 0, ()), "runs is 0; it must be at least 1"),
        (("ilp,random", 1, 1, ()), "budget is 1 measured runs; 2 candidates need"),
        (("ilp,ilp", 1, 99, ()), "each once"),
        (("rl", 0, 99, ()), "seeds is 0"),
        (("ilp", 1, 99, ("lr=1",)), "only 'rl' takes PPO settings"),
        (("rl", 1, 99, ("speed=1",)), "unknown PPO setting 'speed'; use one of first_iterations"),
        (("rl", 1, 99, ("lr=fast",)), "lr is 'fast'; it must be a number"),
        (("rl", 1, 99, ("lr=nan",)), "lr is nan; it must be a number"),
        (("rl", 1, 99, ("epochs=0",)), "epochs is 0; it must be a whole number, 1 or more"),
        (("rl", 1, 99, ("lr",)), "ppo is 'lr'; write a setting once"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: tuple[str, int, int, tuple[str, ...]], message: str
) -> None:
    searchers, seeds, budget, ppo = arguments
    with pytest.raises(AutoPrecError, match=message) as caught:
        run_bench_tune("synthetic:11", searchers, seeds, budget, tmp_path, ppo=ppo)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["synthetic:7:2", "synthetic:x", "synthetic:-1", "nowhere.json"])
def test_a_landscape_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AutoPrecError, match="landscape"):
        run_bench_tune(name, "ilp", 1, 50, tmp_path)


def test_candidates_are_every_combination() -> None:
    made = make_candidates("ilp, rl", 2, ["lr=1e-3,3e-4", "epochs=3"])
    assert [candidate.name for candidate in made] == [
        "ilp seed 0", "ilp seed 1", "rl seed 0", "rl seed 1", "rl seed 0 lr=0.0003", "rl seed 1 lr=0.0003",
    ]  # fmt: skip
    assert made[-1].ppo == PPOSettings(lr=3e-4)
    with pytest.raises(SettingError, match="takes no PPO settings"):
        Candidate("ilp", 0, PPOSettings(lr=1.0))
