"""Plans of the store, measured and predicted, from Python and on the command line."""

import pytest
import torch
from commands import TINY, command, write

import autoprec
from autoprec.errors import SettingError
from autoprec.plan import Plan


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return a folder with a store that a job has filled, and the workload."""
    folder = tmp_path_factory.mktemp("tuned")
    write(folder, "mine.py", TINY)
    workload = f"{folder / 'mine.py'}:Tiny"
    autoprec.tune(
        workload, budget="12s", max_quality_drop="2%", searcher="ilp", store=str(folder / "store.db")
    )
    return folder, workload


def predict(tuned, limit, **options):
    folder, workload = tuned
    return autoprec.predict_plan(workload, max_quality_drop=limit, store=str(folder / "store.db"), **options)


def test_another_limit_is_answered_without_measuring_and_says_so(tuned):
    tight, loose = predict(tuned, 1e-9), predict(tuned, "50%")
    for plan in (tight, loose):
        assert plan.evidence is None and plan.runtime == "eager"
        assert plan.prediction.runs >= 1
        assert plan.prediction.speedup.low <= plan.prediction.speedup.value <= plan.prediction.speedup.high
        assert Plan.from_json(plan.to_json()) == plan
    assert set(tight.formats.values()) == {"fp32"}
    assert loose.prediction.max_quality_drop == pytest.approx(0.5)
    assert loose.prediction.speedup.value >= tight.prediction.speedup.value


def test_memory_is_predicted_from_the_same_runs(tuned):
    whole = predict(tuned, "50%").prediction.plan_bytes
    small = predict(tuned, "50%", objective="memory")
    assert small.prediction.plan_bytes < whole
    limited = predict(tuned, "50%", max_memory="60%")
    assert limited.prediction.plan_bytes <= 0.6 * (2 * 65 * 64 + 65 * 8) * 4


def test_a_predicted_plan_applies_and_can_be_checked(tuned, tmp_path):
    _, workload = tuned
    plan = predict(tuned, "50%")
    outcome = autoprec.check(plan, workload)
    assert outcome.holds is None and outcome.measurement is not None
    assert "predicted, not measured" in outcome.notes[0]


def test_no_plan_is_predicted_where_nothing_was_measured(tuned, tmp_path):
    _, workload = tuned
    empty = str(tmp_path / "empty.db")
    assert autoprec.predict_plan(workload, max_quality_drop=0.1, store=empty) is None
    assert predict(tuned, 0.1, runtime="onnxruntime") is None
    assert predict(tuned, 0.1, runtime=None).runtime == "eager"
    with pytest.raises(SettingError, match="max_quality_drop"):
        predict(tuned, -1)


def test_the_command_asks_the_store(tuned, tmp_path):
    folder, _ = tuned

    def ask(*arguments):
        # Plans count for as many threads as they were measured with.
        return command(folder, "plans", "best", *arguments, OMP_NUM_THREADS=str(torch.get_num_threads()))

    code, out, err = ask("mine.py:Tiny", "--max-quality-drop", "0.5")
    assert (code, err) == (0, "") and "measured" in out and "PREDICTED" not in out
    code, out, err = ask("mine.py:Tiny", "--max-quality-drop", "1%", "--predict", "--out", "p.json")
    assert (code, err) == (0, "") and "PREDICTED" in out and "probability" in out
    assert Plan.load(folder / "p.json").prediction is not None
    code, out, err = ask("mine.py:Tiny", "--predict")
    assert (code, out) == (2, "") and "needs --max-quality-drop" in err
    code, out, err = ask("mine.py:Tiny", "--max-quality-drop", "1%")
    assert (code, out) == (2, "") and "absolute number" in err
