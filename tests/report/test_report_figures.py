"""What the figures show, checked against the result they are made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_results import make_result

from autoprec.envs.space import FORMAT_NAMES, best_trial
from autoprec.kernels.formats import FORMATS
from autoprec.report.palette import format_colour, searcher_styles, short_names
from autoprec.report.search_figures import drop_floor, pareto_figure, progress_figure
from autoprec.report.unit_figures import cost_map, gains_figure, saved, sensitivity_map
from autoprec.report.words import large, number, size, smaller


def traces(figure, **wanted):
    return [t for t in figure.data if all(getattr(t, key) == value for key, value in wanted.items())]


def test_every_run_that_worked_is_a_point_of_the_front_figure(encoder):
    figure = pareto_figure(encoder)
    points = [
        x for t in traces(figure, mode="markers", type="scatter") if t.showlegend is not False for x in t.x
    ]
    assert sorted(points) == sorted(1 / trial.time for trial in encoder.trials if trial.ok)
    (front,) = traces(figure, name="front, fresh")
    assert list(front.x) == sorted(plan.evidence.speedup.value for plan in encoder.front)
    (chosen,) = traces(figure, name="chosen")
    assert chosen.x[0] == encoder.best.evidence.speedup.value
    assert chosen.y[0] == encoder.best.evidence.quality.drop
    assert chosen.error_x.array[0] == pytest.approx(
        encoder.best.evidence.speedup.high - encoder.best.evidence.speedup.value
    )


@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_progress_never_gets_worse_and_ends_at_the_best_run(objective):
    result = make_result(10, objective=objective, runs=40)
    (whole,) = traces(progress_figure(result), name="whole job")
    best = best_trial(result.trials, result.goal)
    steps = np.diff(np.array(whole.y))
    if objective == "memory":
        assert (steps <= 0).all() and whole.y[-1] == best.bytes / 1e6
    else:
        assert (steps >= 0).all() and whole.y[-1] == 1 / best.time
    assert whole.x[-1] == len(result.trials)


def test_maps_mark_the_format_of_every_unit(encoder):
    for figure in (sensitivity_map(encoder, encoder.best), cost_map(encoder, encoder.best)):
        marks, columns = figure.data[1], figure.layout.xaxis.ticktext
        found = {encoder.space.units[y]: columns[x] for x, y in zip(marks.x, marks.y, strict=True)}
        assert found == encoder.best.formats


def test_an_emulated_format_has_an_error_but_neither_time_nor_size(encoder):
    column = list(sensitivity_map(encoder, encoder.best).layout.xaxis.ticktext).index("fp8_block")
    assert all(row[column] is not None for row in sensitivity_map(encoder, encoder.best).data[0].z)
    assert all(row[column] is None for row in cost_map(encoder, encoder.best).data[0].z)


def test_gains_are_against_the_units_own_format(encoder):
    own = encoder.space.baseline
    assert not saved(encoder, own).any()
    figure = gains_figure(encoder, encoder.best)
    bars = {y: x for t in traces(figure, type="bar") for x, y in zip(t.x, t.y, strict=True)}
    assert sorted(bars) == list(range(len(own)))
    time = encoder.profile.time
    for unit, name in enumerate(encoder.best.formats.values()):
        k = FORMAT_NAMES.index(name)
        assert bars[unit] == pytest.approx(100 * (time[unit, own[unit]] - time[unit, k]))


def test_colours_and_symbols_are_distinct_and_lasting():
    colours = [format_colour(name) for name in FORMATS]
    assert len(set(colours)) == len(FORMATS), "give the new format a colour of its own"
    both = searcher_styles(["rl", "mine", "greedy"]), searcher_styles(["greedy", "rl"])
    assert both[0]["rl"] == both[1]["rl"] and both[0]["greedy"] == both[1]["greedy"]
    assert len(set(both[0].values())) == 3


MODULES = st.lists(st.text(alphabet="ab{}0", min_size=1, max_size=12), min_size=1, max_size=5).map(".".join)


@given(st.lists(MODULES, min_size=1, max_size=8), st.integers(6, 30))
def test_labels_fit_and_short_distinct_names_stay_distinct(names, width):
    labels = short_names(names, width)
    assert len(labels) == len(names) and all(len(text) <= width for text in labels)
    assert all(text for text in labels)
    if all(len(name) <= width for name in names):
        assert len(set(labels)) == len(set(names))


def test_labels_keep_the_number_of_the_layer():
    names = [f"bert.encoder.layer.{i}.attention.output.dense" for i in range(12)]
    assert short_names(names, 40)[3] == "3.attention.output.dense"
    assert short_names(names, 18)[3] == "3.a.output.dense"


@given(st.lists(st.floats(-1, 10), max_size=5), st.one_of(st.just(0.0), st.floats(1e-9, 1e3)))
def test_the_axis_of_drops_has_a_floor_near_the_limit(drops, limit):
    floor = drop_floor(drops, limit)
    assert floor > 0 and math.isfinite(floor)
    if limit > 0:
        assert limit / 10_001 <= floor <= limit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(math.nan), "–"),
        (number(-0.00132), "−0.00132"),
        (number(1e-9), "1e−9"),
        (size(0), "0 bytes"),
        (size(30_612_345), "30.6 MB"),
        (size(math.inf), "–"),
        (smaller(90, 30), "3.0× smaller"),
        (smaller(30, 90), "3.0× larger"),
        (smaller(1000, 1004), "as large as before"),
        (smaller(0, 0), "0 bytes → 0 bytes"),
        (large(1200), "1,200"),
        (large(6.14e21), "6.1 × 10²¹"),
        (large(math.inf), "more than 10³⁰⁸"),
    ],
)
def test_figures_read_as_people_say_them(text, expected):
    assert text == expected
