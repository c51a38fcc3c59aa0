"""How searchers are judged, and the command that compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import command

from autoprec.agents.comparison import Known, Search, area, best_known, runs_to, scaled, scores, search, truth
from autoprec.envs.benchmark_set import benchmark_landscape
from autoprec.envs.space import Trial
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.errors import SettingError


def found(costs: tuple[float, ...], areas: tuple[float, ...], task: str = "limit") -> Search:
    return Search("l", "me", task, 0, costs, areas, (), 0.0)


def test_regret_is_the_share_of_the_possible_gain_that_was_missed() -> None:
    one = found((float("inf"), 0.9, 0.6, 0.5), (0.0, 1.0, 4.0, 5.0))
    known = Known(cost=0.5, area=5.0)
    assert [scores(one, known, runs).regret for runs in (1, 2, 3, 4, 99)] == pytest.approx(
        [1, 0.8, 0.2, 0, 0]
    )
    assert [scores(one, known, runs).area for runs in (1, 3, 4)] == pytest.approx([0, 0.8, 1])
    assert runs_to(one, known) == 4
    assert runs_to(found(one.costs, one.areas, "front"), known, 0.8) == 3
    assert runs_to(found((0.9,), (1.0,)), known) is None
    # Where nothing is better than the baseline, there is nothing to miss.
    assert scores(found((1.0,), (0.0,)), Known(1.0, 0.0), 1).regret == 0


def test_the_area_counts_cost_below_the_baselines_and_drops_below_ten_limits() -> None:
    def at(cost: float, drop: float) -> Trial:
        return Trial((0,), True, cost, 1.0, drop, "x")

    assert area([at(0.5, 0.0)]) == pytest.approx(5.0)
    assert area([at(0.5, 5.0), at(0.9, -1.0)]) == pytest.approx(0.5 * 5 + 0.1 * 5)
    assert area([at(0.5, 11.0), at(1.2, 0.0)]) == 0


def test_a_lucky_run_is_judged_by_the_law() -> None:
    landscape = synthetic_landscape(1, 6, time_noise=0.3, drop_noise=1.0)
    trial = landscape.evaluate(landscape.space.baseline, "x")
    (judged,) = scaled(landscape, truth(landscape, [trial]), "latency")
    assert judged.drop == 0.0
    assert trial.drop != 0.0
    assert judged.time != pytest.approx(trial.time)


def test_the_best_known_is_at_least_what_was_found_and_close_to_the_optimum() -> None:
    landscape = synthetic_landscape(2, 7, formats=("fp32", "bf16", "int8_dynamic", "int4_weight_only"))
    one = search(landscape, "limit", "ilp", 0, 30, "latency")
    known = best_known(landscape, [one], "latency")
    assert known.cost <= min(one.costs)
    assert known.area >= max(one.areas)
    whole = landscape.record()
    best = best_known(whole, [], "latency")
    assert best.cost <= known.cost + 1e-9
    assert known.cost - best.cost < 0.02
    assert one == Search.from_data(json.loads(json.dumps(one.to_data())))


def test_benchmark_landscapes_are_fixed_by_their_seed_and_differ() -> None:
    first, again, other = (benchmark_landscape(seed) for seed in (0, 0, 1))
    assert first.name == again.name != other.name
    assert first.evaluate(first.space.baseline, "x") == again.evaluate(first.space.baseline, "x")
    with pytest.raises(SettingError, match="seeds from 0 to"):
        benchmark_landscape(1_000_000)


def test_the_command_writes_figures_and_goes_on_where_it_was(tmp_path: Path) -> None:
    call = ["bench", "searchers", "--synthetic", 1, "--searchers", "hillclimb,random", "--runs", "5,12",
            "--jobs", 1, "--out", "b"]  # fmt: skip
    code, out, err = command(tmp_path, *call)
    assert code == 0, err
    assert "Regret at the limit" in out
    kept = tmp_path / "b" / "searches.jsonl"
    lines = kept.read_text().splitlines()
    assert len(lines) == 4
    assert len((tmp_path / "b" / "searchers.csv").read_text().splitlines()) == 5
    assert (tmp_path / "b" / "front.html").stat().st_size > 1000
    # One line was cut short by a kill: only that search is done again.
    kept.write_text("\n".join([*lines[:3], lines[3][:40]]) + "\n")
    assert command(tmp_path, *call)[0] == 0
    assert len(kept.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to search: give landscape files, --synthetic 20 or --live WORKLOAD"),
        (["--synthetic", "1", "--searchers", "rll"], "unknown searcher 'rll'"),
        (["--synthetic", "1", "--runs", "0,5"], "runs is '0,5'; give numbers above 0"),
        (["--synthetic", "1", "--tasks", "both"], "tasks is 'both'; use limit, front"),
        (["missing.json"], "cannot read landscape 'missing.json'"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    code, out, err = command(tmp_path, "bench", "searchers", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
