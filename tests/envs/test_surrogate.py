"""The surrogate: what it knows before, after few and after many runs, and that its doubts are honest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoprec.agents.acquisition import changes_of, neighbours
from autoprec.envs.space import Goal, Trial
from autoprec.envs.surrogate import Surrogate, failure_blame
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape


def mixed_plans(landscape: SyntheticLandscape, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return plans that lower the precision of a random share of the units."""
    space = landscape.space
    plans = []
    for share in rng.uniform(size=count):
        changed = rng.uniform(size=len(space.units)) < share
        plans.append(
            tuple(
                int(rng.choice(space.choices(unit))) if changed[unit] else space.baseline[unit]
                for unit in range(len(space.units))
            )
        )
    return plans


def measured(landscape: SyntheticLandscape, plans: list[tuple[int, ...]]) -> list[Trial]:
    return [landscape.evaluate(plan, "test") for plan in plans]


def surrogate_of(landscape: SyntheticLandscape, **goal: object) -> Surrogate:
    settings_ = {"objective": "latency", "max_quality_drop": landscape.max_quality_drop, **goal}
    return Surrogate(landscape.space, landscape.profile, Goal(**settings_))  # type: ignore[arg-type]


def uniform_plans(landscape: SyntheticLandscape) -> list[tuple[int, ...]]:
    return [landscape.space.uniform(k) for k in landscape.space.choices(0)]


@pytest.mark.parametrize("root", [1.0, 0.5])
@pytest.mark.parametrize("runs", [8, 30, 100])
def test_nine_in_ten_held_out_runs_fall_into_the_90_percent_interval(root: float, runs: int) -> None:
    hits: dict[str, list[bool]] = {"time": [], "drop": []}
    for seed in range(6):
        landscape = synthetic_landscape(seed, 16, time_noise=0.01, drop_noise=0.1, root=root)
        rng = np.random.default_rng(seed)
        seen = measured(landscape, [*uniform_plans(landscape), *mixed_plans(landscape, runs, rng)][:runs])
        held_out = measured(landscape, mixed_plans(landscape, 100, rng))
        surrogate = surrogate_of(landscape).fit(seen)
        answer = surrogate.predict(np.array([trial.assignment for trial in held_out]))
        time = np.array([trial.time for trial in held_out])
        drop = np.array([trial.drop for trial in held_out])
        hits["time"] += list(np.abs(time - answer.time_mean) <= 1.645 * answer.time_std)
        # Beyond ten limits damage saturates; such plans are never close calls.
        relevant = drop < 10 * landscape.max_quality_drop
        hits["drop"] += list((np.abs(drop - answer.drop_mean) <= 1.645 * answer.drop_std)[relevant])
    assert 0.75 <= np.mean(hits["time"]) <= 1.0
    assert 0.75 <= np.mean(hits["drop"]) <= 0.995


def test_more_runs_make_better_predictions() -> None:
    errors = []
    for runs in (6, 30, 150):
        missed = []
        for seed in range(4):
            landscape = synthetic_landscape(seed, 12, time_noise=0.005, drop_noise=0.02)
            rng = np.random.default_rng(seed)
            held_out = measured(landscape, mixed_plans(landscape, 100, rng))
            seen = [*uniform_plans(landscape), *mixed_plans(landscape, runs, rng)][:runs]
            answer = (
                surrogate_of(landscape)
                .fit(measured(landscape, seen))
                .predict(np.array([trial.assignment for trial in held_out]))
            )
            drop = np.array([trial.drop for trial in held_out])
            missed.append(np.median(np.abs(answer.drop_mean - drop) / (np.abs(drop) + 0.001)))
        errors.append(np.mean(missed))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.25


def test_evidence_tells_a_relative_error_from_a_quadratic_loss() -> None:
    for root in (1.0, 0.5):
        landscape = synthetic_landscape(0, 12, drop_noise=0.02, coupling=0.0, root=root)
        plans = mixed_plans(landscape, 60, np.random.default_rng(0))
        assert surrogate_of(landscape).fit(measured(landscape, plans)).root == root


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1.0, 1.0), min_size=0, max_size=12),
    st.sampled_from([0.0, 1e-6, 0.01, 10.0]),
    st.integers(0, 3),
)
def test_predictions_are_finite_whatever_the_runs_say(drops: list[float], limit: float, seed: int) -> None:
    landscape = synthetic_landscape(seed, 5)
    plans = mixed_plans(landscape, len(drops), np.random.default_rng(seed))
    trials = [
        Trial(plan, True, float(np.random.default_rng(i).uniform(0.3, 2)), 1.0, drop, "test")
        for i, (plan, drop) in enumerate(zip(plans, drops, strict=True))
    ]
    surrogate = surrogate_of(landscape, max_quality_drop=limit).fit(trials)
    asked = np.array(mixed_plans(landscape, 20, np.random.default_rng(99)))
    answer = surrogate.predict(asked)
    draws = surrogate.draw(np.random.default_rng(0), 8)
    for values in (
        *draws.evaluate(asked),
        answer.time_mean,
        answer.time_std,
        answer.drop_mean,
        answer.drop_std,
    ):
        assert np.isfinite(values).all()
    assert (answer.time_std > 0).all()
    assert (answer.drop_std > 0).all()
    assert (draws.damage >= 0).all()


def test_one_saturated_run_does_not_hide_what_mild_runs_say() -> None:
    landscape = synthetic_landscape(1, 12)
    plans = mixed_plans(landscape, 40, np.random.default_rng(0))
    trials = measured(landscape, plans)
    ruined = Trial(landscape.space.uniform(8), True, 0.5, 1.0, 1.0, "test")
    asked = np.array(mixed_plans(landscape, 60, np.random.default_rng(1)))
    before = surrogate_of(landscape).fit(trials).predict(asked).drop_mean
    after = surrogate_of(landscape).fit([*trials, ruined]).predict(asked).drop_mean
    mild = before < landscape.max_quality_drop
    assert np.abs(after - before)[mild].max() < landscape.max_quality_drop


def test_draws_agree_with_the_prediction() -> None:
    landscape = synthetic_landscape(2, 10, time_noise=0.01, drop_noise=0.05)
    plans = mixed_plans(landscape, 60, np.random.default_rng(0))
    surrogate = surrogate_of(landscape).fit(measured(landscape, plans))
    asked = np.array(mixed_plans(landscape, 30, np.random.default_rng(1)))
    time, _ = surrogate.draw(np.random.default_rng(0), 400).evaluate(asked)
    answer = surrogate.predict(asked)
    assert np.abs(time.mean(axis=0) - answer.time_mean).max() < 0.02
    assert (time.std(axis=0) < 1.5 * answer.time_std).all()


def test_each_draw_evaluates_its_own_plan_as_the_full_table_does() -> None:
    landscape = synthetic_landscape(2, 6)
    surrogate = surrogate_of(landscape).fit(measured(landscape, uniform_plans(landscape)))
    asked = np.array(mixed_plans(landscape, 5, np.random.default_rng(1)))
    draws = surrogate.draw(np.random.default_rng(0), 5)
    for each, table in zip(draws.evaluate_each(asked), draws.evaluate(asked), strict=True):
        np.testing.assert_allclose(each, np.diag(table))


def test_bytes_are_exact() -> None:
    landscape = synthetic_landscape(3, 6)
    surrogate = surrogate_of(landscape)
    plans = mixed_plans(landscape, 10, np.random.default_rng(0))
    expected = [landscape.profile.plan_bytes(landscape.space, plan) for plan in plans]
    assert surrogate.bytes(np.array(plans)).tolist() == expected


def test_a_draw_keeps_its_own_budget() -> None:
    landscape = synthetic_landscape(3, 6, root=0.5)
    plans = mixed_plans(landscape, 30, np.random.default_rng(0))
    surrogate = surrogate_of(landscape).fit(measured(landscape, plans))
    draws = surrogate.draw(np.random.default_rng(0), 4)
    limit, law = landscape.max_quality_drop, draws.drop_law
    np.testing.assert_allclose(law.offset + draws.budget(limit) ** law.root, np.maximum(limit, law.offset))


def test_an_emulated_format_is_not_believed_to_save_time() -> None:
    landscape = synthetic_landscape(3, 4)
    landscape.profile.time[:, 4] = np.nan
    surrogate = surrogate_of(landscape)
    base = np.array([landscape.space.baseline])
    emulated = np.array([landscape.space.uniform(4)])
    assert surrogate.predict(emulated).time_mean == pytest.approx(surrogate.predict(base).time_mean)


def test_failures_blame_what_never_ran_well() -> None:
    landscape = synthetic_landscape(0, 4, formats=("fp32", "bf16", "int8_dynamic"))
    space = landscape.space
    ok = Trial((0, 1, 0, 4), True, 1.0, 1.0, 0.0, "test")
    failed = Trial((4, 1, 0, 4), False, np.nan, np.nan, np.nan, "test")
    blame = failure_blame(space, [ok, failed])
    assert blame[0, 4] == 1.0
    assert blame.sum() == 1.0
    surrogate = surrogate_of(landscape).fit([ok, failed])
    chances = surrogate.ok_probability(np.array([(4, 0, 0, 0), (0, 4, 0, 0)]))
    assert chances.tolist() == [0.0, 1.0]


def test_one_change_costs_what_the_whole_plan_costs() -> None:
    landscape = synthetic_landscape(4, 7, root=0.5, coupling=1.0, failing=2)
    plans = mixed_plans(landscape, 40, np.random.default_rng(0))
    surrogate = surrogate_of(landscape).fit(measured(landscape, plans))
    draws = surrogate.draw(np.random.default_rng(0), 5)
    assert draws.time_law.border.any()
    assert draws.drop_law.coupling.any()
    for plan in np.array(plans[:3], np.intp):
        units, formats = changes_of(landscape.space, plan)
        around = neighbours(landscape.space, plan)
        changes = plan, units, formats
        for found, whole in zip(draws.evaluate_changes(*changes), draws.evaluate(around), strict=True):
            np.testing.assert_allclose(found, whole, rtol=1e-9)
        np.testing.assert_allclose(surrogate.bytes_of_changes(*changes), surrogate.bytes(around))
        np.testing.assert_allclose(
            surrogate.ok_probability_of_changes(*changes), surrogate.ok_probability(around)
        )
