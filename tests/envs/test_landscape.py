"""Landscapes: what is written is read, what is wrong is refused with its place; the synthetic law holds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoprec.envs.landscape import Landscape, LandscapeError, NotRecordedError
from autoprec.envs.space import FORMAT_NAMES, Goal
from autoprec.envs.synthetic import all_plans, synthetic_landscape
from autoprec.errors import SettingError

SMALL = ("fp32", "bf16", "int8_dynamic")


@pytest.fixture(scope="module")
def recorded() -> Landscape:
    return synthetic_landscape(0, 3, formats=SMALL, failing=1, drop_noise=0.1, time_noise=0.01).record()


@pytest.mark.parametrize("name", ["landscape.json", "landscape.json.gz"])
def test_what_is_saved_is_loaded(recorded: Landscape, tmp_path: Path, name: str) -> None:
    loaded = Landscape.load(recorded.save(tmp_path / name))
    assert loaded.space.units == recorded.space.units
    assert loaded.space.baseline == recorded.space.baseline
    assert loaded.complete
    assert loaded.max_quality_drop == recorded.max_quality_drop
    for field in ("time", "bytes", "error", "features"):
        np.testing.assert_array_equal(getattr(loaded.profile, field), getattr(recorded.profile, field))
    assert loaded.profile.implementations == recorded.profile.implementations
    for ours, theirs in zip(loaded.trials, recorded.trials, strict=True):
        assert (ours.assignment, ours.ok) == (theirs.assignment, theirs.ok)
        np.testing.assert_equal([ours.time, ours.drop], [theirs.time, theirs.drop])
    assert any(not trial.ok for trial in loaded.trials)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_recorded_run_is_replayed_in_the_name_of_whoever_asks(recorded: Landscape) -> None:
    plan = recorded.space.uniform(1)
    assert recorded.evaluate(plan, "rl").searcher == "rl"


def test_a_plan_that_was_not_recorded_is_named(recorded: Landscape) -> None:
    part = Landscape("part", recorded.space, recorded.profile, recorded.trials[:5], False, 0.01)
    with pytest.raises(NotRecordedError, match=r"'part' holds no measured run of the plan \(int8_dynamic, "):
        part.evaluate(recorded.space.uniform(4), "rl")


def test_completeness_is_checked(recorded: Landscape) -> None:
    with pytest.raises(LandscapeError, match="says it is complete, but holds 5 of 27 plans"):
        Landscape("part", recorded.space, recorded.profile, recorded.trials[:5], True, 0.01)


def spoil(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoiled(data: dict[str, Any]) -> dict[str, Any]:
        change(data)
        return data

    return spoiled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema="autoprec.landscape/2"), "schema 'autoprec.landscape/2'"),
        (lambda data: data.pop("schema"), "schema None"),
        (lambda data: data.pop("units"), "at units: Field required"),
        (lambda data: data["units"].pop(), "at mask: expected 2 entries, got 3"),
        (lambda data: data["mask"][1].pop(), "at mask.1: expected"),
        (lambda data: data["trials"]["time"].pop(), "at trials.time: expected 27 entries, got 26"),
        (lambda data: data["trials"]["assignment"][3].append(0), "at trials.assignment.3: expected 3"),
        (lambda data: data["trials"]["assignment"][3].__setitem__(0, 99), "a format index is not in"),
        (lambda data: data["formats"].__setitem__(0, "fp1"), "format 'fp1'"),
        (lambda data: data["profile"]["feature_names"].pop(), "other unit features"),
        (lambda data: data["profile"]["bytes"][0].__setitem__(0, -1), "at profile.bytes.0.0"),
        (lambda data: data["mask"][0].__setitem__(0, False), "at baseline: a format is masked"),
        (lambda data: data.update(surprise=1), "at surprise: Extra inputs"),
        (lambda data: data.update(max_quality_drop=-1), "at max_quality_drop"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(
    recorded: Landscape, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = tmp_path / "landscape.json"
    path.write_text(json.dumps(spoil(change)(json.loads(json.dumps(recorded.to_data())))))
    with pytest.raises(LandscapeError) as caught:
        Landscape.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_cut_short_is_refused(recorded: Landscape, tmp_path: Path) -> None:
    for name in ("landscape.json", "landscape.json.gz"):
        path = recorded.save(tmp_path / name)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(LandscapeError, match="cut short"):
            Landscape.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "noise.json").write_bytes(b"\x80\x81")
    (tmp_path / "damaged.json.gz").write_bytes(gzip.compress(b"{}")[:-4] + b"xxxx")
    for name in ("list.json", "deep.json", "noise.json", "damaged.json.gz", "missing.json"):
        with pytest.raises(LandscapeError, match=name):
            Landscape.load(tmp_path / name)


def test_a_vocabulary_that_grew_reads_older_files(recorded: Landscape) -> None:
    data = json.loads(json.dumps(recorded.to_data()))
    kept = [FORMAT_NAMES.index(name) for name in reversed(SMALL)]
    data["formats"] = [FORMAT_NAMES[k] for k in kept]
    for table in (
        data["mask"],
        *(data["profile"][n] for n in ("time", "bytes", "error", "implementations", "reasons")),
    ):
        table[:] = [[row[k] for k in kept] for row in table]
    data["baseline"] = [kept.index(k) for k in data["baseline"]]
    plans = data["trials"]["assignment"]
    plans[:] = [[kept.index(k) for k in plan] for plan in plans]
    loaded = Landscape.from_data(data, "older")
    assert [trial.assignment for trial in loaded.trials] == [trial.assignment for trial in recorded.trials]
    np.testing.assert_array_equal(loaded.space.mask, recorded.space.mask)
    np.testing.assert_array_equal(loaded.profile.time, recorded.profile.time)


def test_the_synthetic_optimum_is_the_best_of_all_plans() -> None:
    landscape = synthetic_landscape(1, 4, formats=SMALL)
    goal = Goal("latency", landscape.max_quality_drop)
    assert landscape.optimum(goal) is not None
    best = landscape.optimum(goal)
    recorded_best = landscape.record().optimum(goal)
    assert best is not None
    assert recorded_best is not None
    assert best.assignment == recorded_best.assignment
    met = [t for t in (landscape.evaluate(plan, "x") for plan in all_plans(landscape.space)) if t.meets(goal)]
    assert best.time == pytest.approx(min(trial.time for trial in met))


def test_one_plan_always_measures_the_same() -> None:
    landscape = synthetic_landscape(1, 4, time_noise=0.1, drop_noise=0.5)
    plan = landscape.space.uniform(4)
    assert landscape.evaluate(plan, "a") == landscape.evaluate(plan, "a")
    other = synthetic_landscape(2, 4, time_noise=0.1, drop_noise=0.5)
    assert landscape.evaluate(plan, "a") != other.evaluate(plan, "a")


def test_the_limit_is_neither_trivial_nor_hopeless() -> None:
    for seed in range(10):
        landscape = synthetic_landscape(seed, 12)
        drops = [landscape.evaluate(landscape.space.uniform(k), "x").drop for k in landscape.space.choices(0)]
        assert min(drops) == 0.0
        assert max(drops) > 5 * landscape.max_quality_drop
        assert max(drops) <= 1.0


def test_settings_that_make_no_landscape_are_refused() -> None:
    with pytest.raises(SettingError, match="units is 0"):
        synthetic_landscape(0, 0)
    with pytest.raises(SettingError, match="with fp32 among them"):
        synthetic_landscape(0, 2, formats=("bf16",))
    with pytest.raises(SettingError, match="more than the 500000 that can all be tried"):
        synthetic_landscape(0, 30).optimum(Goal("latency", 0.01))
