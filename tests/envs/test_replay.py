"""The law behind landscapes that do not hold every plan."""

from __future__ import annotations

import numpy as np
import pytest

from autoprec.envs.landscape import Landscape, LandscapeError
from autoprec.envs.replay import Replay
from autoprec.envs.space import Trial
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape

FORMATS = ("fp32", "bf16", "int8_dynamic")


def recorded(source: SyntheticLandscape, runs: int) -> Landscape:
    """Record random plans, each changing a random share of the units."""
    rng = np.random.default_rng(0)
    plans = {source.space.baseline}
    while len(plans) < runs:
        share = rng.uniform()
        plans.add(
            tuple(
                int(rng.choice(source.space.choices(unit))) if rng.uniform() < share else base
                for unit, base in enumerate(source.space.baseline)
            )
        )
    trials = tuple(source.evaluate(plan, "recorded") for plan in plans)
    return Landscape(source.name, source.space, source.profile, trials, False, source.max_quality_drop)


@pytest.fixture(scope="module")
def source() -> SyntheticLandscape:
    return synthetic_landscape(3, 8, formats=FORMATS, time_noise=0.005, coupling=0.5, failing=1)


@pytest.fixture(scope="module")
def replay(source: SyntheticLandscape) -> Replay:
    return Replay(recorded(source, 200))


def test_what_was_recorded_is_replayed_as_it_was(source: SyntheticLandscape, replay: Replay) -> None:
    for trial in recorded(source, 200).trials[:20]:
        again = replay.evaluate(trial.assignment, "me")
        assert (again.ok, again.searcher) == (trial.ok, "me")
        if trial.ok:
            assert (again.time, again.drop, again.bytes) == (trial.time, trial.drop, trial.bytes)


def test_the_law_is_close_where_nothing_was_recorded(source: SyntheticLandscape, replay: Replay) -> None:
    rng = np.random.default_rng(1)
    plans = np.array([[rng.choice(source.space.choices(u)) for u in range(8)] for _ in range(300)])
    time, drop = source.figures(plans)
    expected = replay.figures(plans)
    runs = ~np.isnan(expected[0])
    ran = runs & ~np.isnan(time)
    assert np.median(np.abs(expected[0] / time - 1)[ran]) < 0.01
    assert np.median(np.abs(expected[1] / drop - 1)[ran & (drop > 0)]) < 0.15
    # The choice that always failed fails here as well, and no other does.
    fails = np.array([[(u, int(k)) in source.failing for u, k in enumerate(plan)] for plan in plans])
    assert (~runs == fails.any(axis=1)).mean() > 0.95


def test_one_plan_always_measures_alike(source: SyntheticLandscape, replay: Replay) -> None:
    plan = tuple(source.space.choices(unit)[-1] for unit in range(8))
    found = replay.evaluate(plan, "a")
    assert replay.evaluate(plan, "a") == found or not found.ok
    with pytest.raises(LandscapeError, match="is no plan of the landscape"):
        replay.evaluate((99,) * 8, "a")


def test_the_error_of_the_law_is_judged_on_runs_it_did_not_see(replay: Replay) -> None:
    found = replay.held_out()
    assert found.time < 0.02
    assert found.drop < 0.3
    assert found.order > 0.95


def test_too_few_runs_are_refused(source: SyntheticLandscape) -> None:
    with pytest.raises(
        LandscapeError, match=r"holds \d+ runs that did not fail; a law needs 50: record more"
    ):
        Replay(recorded(source, 30))


def test_a_quality_that_never_changes_replays(source: SyntheticLandscape) -> None:
    flat = tuple(
        Trial(t.assignment, True, t.time if t.ok else 1.0, t.bytes if t.ok else 1.0, 0.0, "recorded")
        for t in recorded(source, 80).trials
    )
    law = Replay(Landscape("flat", source.space, source.profile, flat, False, 0.01))
    plans = np.array([source.space.baseline, [source.space.choices(u)[-1] for u in range(8)]])
    assert np.allclose(law.figures(plans)[1], 0.0, atol=1e-4)
