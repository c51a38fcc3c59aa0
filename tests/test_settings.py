import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoprec.errors import SettingError, UserError
from autoprec.kernels.formats import FORMATS
from autoprec.settings import Budget, TuneSettings


def check(**given):
    return TuneSettings.check(workload="w", **given)


def refused(says, **given):
    with pytest.raises(SettingError) as caught:
        check(**given)
    message = str(caught.value)
    assert all(word in message for word in says), message
    assert "\n" not in message


@pytest.mark.parametrize(("given", "runs", "seconds"), [
    ("200", 200, None), (200, 200, None), (" 12 ", 12, None), ("90s", None, 90.0), ("20m", None, 1200.0),
    ("1h", None, 3600.0), ("1.5h", None, 5400.0), ("20M", None, 1200.0), ("0.5s", None, 0.5),
])  # fmt: skip
def test_a_budget_is_runs_or_time(given, runs, seconds):
    assert Budget.parse(given) == Budget(runs, seconds)


@pytest.mark.parametrize("given", [
    0, -1, "0", "-5", "abc", "", " ", "20 m", "0s", "0.0m", "-1m", "1d", "m", "1.5", "1e3", "nan", "inf",
    "infs", True, None, 1.5, "9" * 5000, "9" * 400 + "h", "20m 5s", "二",
])  # fmt: skip
def test_other_budgets_are_refused_with_what_to_give(given):
    with pytest.raises(SettingError, match=r"budget is .*; give measured runs \(200\) or wall time"):
        Budget.parse(given)


@given(st.text(max_size=20) | st.integers() | st.floats())
def test_whatever_is_given_as_budget_is_parsed_or_refused(given):
    try:
        found = Budget.parse(given)
    except SettingError:
        return
    assert (found.runs is None) != (found.seconds is None)
    assert (found.runs or found.seconds) > 0


@given(st.text(max_size=20), st.text(max_size=20))
def test_whatever_is_given_as_limit_is_parsed_or_refused(drop, memory):
    for options in ({"max_quality_drop": drop}, {"max_memory": memory}):
        try:
            found = check(**options)
        except SettingError:
            continue
        assert (found.quality_limit(0.9) or 0) >= 0
        assert (found.byte_limit(10**9) or 0) >= 0


def test_the_default_budget_follows_the_size_of_the_model():
    assert Budget.default(1) == Budget(40, 600.0)
    assert Budget.default(30) == Budget(90, 600.0)
    assert Budget.default(1000) == Budget(150, 600.0)


@pytest.mark.parametrize(("given", "baseline", "limit"), [
    (None, 0.9, None), ("0.005", 0.9, 0.005), (0.005, 0.9, 0.005), (0, 0.9, 0.0), ("1%", 0.5, 0.005),
    ("1 %", -2.0, 0.02), ("150%", 2.0, 3.0), ("1e-3", 1.0, 0.001), ("0%", 1.0, 0.0),
])  # fmt: skip
def test_a_quality_limit_is_absolute_or_a_share_of_the_baseline(given, baseline, limit):
    assert check(max_quality_drop=given).quality_limit(baseline) == pytest.approx(limit)


@pytest.mark.parametrize(
    "given", ["abc", "", "%", "-0.1", -1, "-1%", "nan", "inf", "inf%", "1%%", "0,01", True]
)
def test_other_quality_limits_are_refused(given):
    refused(["max_quality_drop is", "give a number (0.005) or a percentage"], max_quality_drop=given)


@pytest.mark.parametrize(("given", "limit"), [
    (None, None), ("80MB", 80 * 10**6), ("0.5GiB", 2**29), ("1kb", 1000), ("5 MB", 5 * 10**6), ("7B", 7),
    ("40%", 400), (4096, 4096), ("4096", 4096),
])  # fmt: skip
def test_a_memory_limit_is_a_size_or_a_share_of_the_baseline(given, limit):
    assert check(max_memory=given).byte_limit(1000) == limit


@pytest.mark.parametrize("given", [
    "abc", "", "0", "0%", "0MB", "-1MB", -5, "1TB", "nan", "inf", "MB", "9" * 400, "9" * 400 + "GB",
])  # fmt: skip
def test_other_memory_limits_are_refused(given):
    refused(["max_memory is", "give a size (80MB, 0.5GiB)"], max_memory=given)


@pytest.mark.parametrize("given", ["fast", "", None, 5, "Latency", ["latency"]])
def test_unknown_objectives_are_refused(given):
    refused(["unknown objective", "latency, throughput, memory"], objective=given)


@pytest.mark.parametrize("given", ["best", "", None, 5, "ILP", ["ilp"]])
def test_unknown_searchers_are_refused(given):
    refused(["unknown searcher", "portfolio, rl, ilp"], searcher=given)


@pytest.mark.parametrize("given", [-1, 2**31, 1.5, "1", None, True])
def test_seeds_are_whole_numbers_of_31_bits(given):
    refused(["seed is", "give a whole number"], seed=given)


def test_formats_come_in_the_order_of_the_vocabulary():
    assert check().formats is None
    assert check(formats="int8_dynamic, fp32").formats == ("fp32", "int8_dynamic")
    assert check(formats=["int8_dynamic", "fp32", "fp32"]).formats == ("fp32", "int8_dynamic")
    assert check(formats=",".join(FORMATS)).formats == tuple(FORMATS)


@pytest.mark.parametrize(("given", "says"), [
    ("int8", ["unknown format 'int8'", "int8_dynamic"]), ("", ["formats is empty"]),
    (" , ", ["formats is empty"]), ([], ["formats is empty"]), ("fp32;int8_dynamic", ["unknown format"]),
])  # fmt: skip
def test_other_formats_are_refused(given, says):
    refused(says, formats=given)


def test_one_pattern_may_be_given_alone():
    assert check(groups="a.*", exclude=["b", "c"]).groups == ("a.*",)
    assert check(groups="a.*", exclude=["b", "c"]).exclude == ("b", "c")


def test_a_job_is_resumed_by_what_is_searched_and_not_by_its_budget():
    assert check(budget=5).key == check(budget="20m").key == check().key
    changed = [
        check(objective="memory"), check(max_quality_drop=0.1), check(max_memory="1MB"), check(seed=1),
        check(searcher="ilp"), check(formats="fp32"), check(groups="a"), check(exclude="a"),
        TuneSettings.check(workload="v"),
    ]  # fmt: skip
    assert len({settings.key for settings in [check(), *changed]}) == 1 + len(changed)


def test_every_mistake_is_the_users():
    assert issubclass(SettingError, UserError)
