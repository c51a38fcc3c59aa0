"""The report as a file: what it says, that it is whole, and that nothing in it can break out."""

import base64
import hashlib
import re
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from made_results import make_result
from pages import Page

from autoprec.envs.space import FORMAT_NAMES, Goal
from autoprec.errors import PlanError
from autoprec.report import write_report
from autoprec.result import RuntimeOutcome, Spending

ALL_FIGURES = {"pareto", "sensitivity", "cost", "gains", "progress"}


def report(result, tmp_path):
    return Page(write_report(result, tmp_path / "report.html").read_text(encoding="utf-8"))


def test_headline_and_evidence_hold_the_fresh_figures(encoder, tmp_path):
    page = report(encoder, tmp_path)
    evidence = encoder.best.evidence
    speedup, over = evidence.speedup, evidence.speedup_over_lossless
    assert f"{speedup.value:.2f}× faster" in page.text
    assert (
        f"{speedup.value:.2f}× [{speedup.low:.2f}, {speedup.high:.2f}] faster than the model as it came"
        in page.text
    )
    assert f"{over.value:.2f}× [{over.low:.2f}, {over.high:.2f}] over the best lossless plan" in page.text
    assert f"quality drop {evidence.quality.drop:.3g} of at most 0.01" in page.text
    assert f"weights {evidence.baseline_bytes / evidence.plan_bytes:.1f}× smaller" in page.text
    assert (
        "Example CPU @ 2.50GHz (AVX2), 2 threads, eager runtime, inputs input_ids int64[1, 16]" in page.text
    )
    for plan in (encoder.best, encoder.lossless, encoder.bound, *encoder.front):
        assert f"{plan.evidence.speedup.value:.2f}×" in page.text
        assert f"{plan.evidence.quality.plan:.4g}" in page.text
    assert "Spearman" in page.text and "was 0.8213" in page.text
    assert "held-out data" in page.text
    assert encoder.notes[0] in page.text


def test_says_how_formats_were_chosen_what_failed_and_where_the_time_went(encoder, tmp_path):
    page = report(encoder, tmp_path)
    assert "no fp16 matmul on this processor: all 28 units" in page.text
    assert "emulated: no kernel of this format on this device: all 28 units" in page.text
    for module, reason in encoder.left.items():
        assert module in page.text and reason in page.text
    failed = sum(not trial.ok for trial in encoder.trials)
    assert failed and f"{failed} of them failed" in page.text
    assert "output is not finite in unit 3" in page.text
    assert "measuring plans 3 min 32 s" in page.text
    assert "3 of them answered from the store" in page.text
    assert "8.03% of the time was not measuring" in page.text
    assert "Which figures are fresh" in page.text


def test_is_whole_and_asks_no_host_for_anything(encoder, tmp_path):
    page = report(encoder, tmp_path)
    assert page.links == [] and page.handlers == []
    assert not {"link", "iframe", "img", "object", "embed", "base", "a"} & set(page.tags)
    assert all("@import" not in style and "url(" not in style for style in page.styles)
    assert page.policy.startswith("default-src 'none';")
    programs = [content for attrs, content in page.scripts if attrs.get("type") != "application/json"]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in programs]
    assert re.findall(r"'sha256-([^']+)'", page.policy) == digests
    assert "plotly.js" in programs[0][:200] and len(programs) == 2


@pytest.mark.parametrize("units", [1, 28, 130])
def test_names_every_unit(units, tmp_path):
    result = make_result(units, runs=30, searchers=("random",), failing=0)
    page = report(result, tmp_path)
    assert all(name in page.text for name in result.space.units)
    assert len(page.figures["gains"]["layout"]["yaxis"]["ticktext"]) == units
    assert set(page.figures) == ALL_FIGURES <= {name.removeprefix("figure-") for name in page.ids}


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7 * 7 }}<!--"


def hostile_result():
    names = (HOSTILE, f"{HOSTILE}.b", "]]>&lt;b&gt;", "x.\x00", "var(--ink)", "%{x}<br>")
    result = make_result(len(names), runs=20, names=names, searchers=("random",))
    rows = tuple((HOSTILE,) * len(FORMAT_NAMES) for _ in names)
    kernels = tuple(
        tuple((HOSTILE,) if cell else () for cell in row) for row in result.profile.implementations
    )
    best = result.best or result.lossless
    device = best.evidence.device.model_copy(update={"name": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    quality = best.evidence.quality.model_copy(update={"reported": {HOSTILE: (1.0, 0.5)}})
    evidence = best.evidence.model_copy(
        update={"device": device, "quality": quality, "shapes": (HOSTILE,), "searcher": HOSTILE}
    )
    return replace(
        result,
        best=best.model_copy(update={"evidence": evidence}),
        profile=replace(result.profile, reasons=rows, implementations=kernels),
        trials=tuple(replace(trial, searcher=HOSTILE) for trial in result.trials),
        failures=(((HOSTILE,) * len(names), HOSTILE),),
        left={HOSTILE: HOSTILE},
        notes=(HOSTILE, "a file name that is no text: \udc80"),
        workload=HOSTILE,
        quality_name=HOSTILE,
        store=HOSTILE,
        job_id=HOSTILE,
    )


def test_hostile_names_stay_text(tmp_path):
    page = report(hostile_result(), tmp_path)
    assert len(page.scripts) == 3 and "img" not in page.tags and page.handlers == [] and page.links == []
    assert page.text.count("<script>alert(1)</script>") >= 12
    assert "{{ 7 * 7 }}" in page.text
    # Plotly reads tags in labels: none of ours may reach it unescaped.
    for figure in page.figures.values():
        assert "<script" not in str(figure) and "<img" not in str(figure)
    assert page.figures["gains"]["layout"]["yaxis"]["ticktext"][-1] == "%{x}&lt;br&gt;"


def without(result, **changes):
    return replace(result, **changes)


def all_failed(result):
    trials = tuple(replace(trial, ok=False, time=nan, bytes=nan, drop=nan) for trial in result.trials)
    failures = tuple((tuple(FORMAT_NAMES[k] for k in trial.assignment), "out of memory") for trial in trials)
    return without(result, best=None, bound=None, front=(), trials=trials, failures=failures)


def unknown_figures(result):
    profile = replace(
        result.profile,
        time=np.full_like(result.profile.time, nan),
        error=np.full_like(result.profile.error, nan),
        bytes=np.zeros_like(result.profile.bytes),
        baseline_bytes=0,
        baseline_seconds=nan,
    )
    trials = tuple(replace(trial, time=nan, drop=nan, bytes=nan) for trial in result.trials)
    return without(
        result, profile=profile, trials=trials, baseline_quality=nan, spending=Spending(0, 0, 0, 0, 0)
    )


ODD = {
    "none meets the goal": (lambda r: without(r, best=None), "No measured plan keeps the limits"),
    "nothing measured in the search": (
        lambda r: without(r, best=None, trials=(), front=(), bound=None, failures=()),
        "No plan was measured in the search.",
    ),
    "everything failed": (all_failed, "Every measured run of the search failed."),
    "unknown figures": (unknown_figures, "–"),
    "the budget ended at once": (
        lambda r: without(r, best=r.lossless, trials=(), front=(), bound=None),
        "The budget ended before any plan of lower precision was measured.",
    ),
    "the best was measured after the search only": (lambda r: without(r, trials=()), "× faster"),
    "lossless is best": (lambda r: without(r, best=r.lossless), "Precision gains nothing here"),
    "no evidence": (
        lambda r: without(
            r, best=None, lossless=r.lossless.model_copy(update={"evidence": None}), front=(), bound=None
        ),
        "Nothing was measured",
    ),
    "no drop allowed": (
        lambda r: without(r, goal=Goal("latency", 0.0), best=r.lossless),
        "by faster kernels for the same numbers",
    ),
    "whole front": (lambda r: without(r, goal=replace(r.goal, whole_front=True)), "no limit was given"),
    "a limit on memory": (
        lambda r: without(r, goal=replace(r.goal, max_bytes=40_000_000)),
        "of at most 40 MB",
    ),
    "no notes, failures or modules left": (lambda r: without(r, notes=(), failures=(), left={}), "× faster"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_jobs_are_reported(name, encoder, tmp_path):
    change, expected = ODD[name]
    result = change(encoder)
    page = report(result, tmp_path)
    assert expected in page.text
    assert "nan" not in re.findall(r"\w+", page.text)
    progress = {"progress"} if any(trial.ok for trial in result.trials) else set()
    assert set(page.figures) == (ALL_FIGURES - {"progress"}) | progress
    assert all(unit in page.text for unit in result.space.units)


def test_no_gain_at_all_is_said_plainly(encoder, tmp_path):
    evidence = encoder.lossless.evidence
    speedup = evidence.speedup.model_copy(update={"value": 1.0, "low": 0.98, "high": 1.02})
    same = encoder.lossless.model_copy(update={"evidence": evidence.model_copy(update={"speedup": speedup})})
    page = report(replace(encoder, best=same, lossless=same), tmp_path)
    assert "Precision gains nothing here" in page.text
    assert "Nothing within the limits is measurably faster than the model as it came" in page.text


def test_memory_goal_speaks_of_bytes(tmp_path):
    result = make_result(12, objective="memory", runs=40, max_bytes=60_000_000)
    page, evidence = report(result, tmp_path), result.best.evidence
    assert f"Weights {evidence.baseline_bytes / evidence.plan_bytes:.1f}× smaller" in page.text
    assert "Size against quality" in page.text and "of at most 60 MB" in page.text
    assert page.figures["pareto"]["layout"]["xaxis"]["title"]["text"].startswith("weights, MB")
    star = next(trace for trace in page.figures["pareto"]["data"] if trace.get("name") == "chosen")
    assert star["x"] == [pytest.approx(evidence.plan_bytes / 1e6)]


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(encoder, tmp_path):
    with pytest.raises(PlanError, match=r"cannot write report .*absent"):
        write_report(encoder, tmp_path / "absent" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(PlanError, match=r"cannot write report .*taken"):
        write_report(encoder, tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_runtimes_are_set_side_by_side(encoder, tmp_path):
    outcomes = (
        RuntimeOutcome("eager", encoder.best, encoder.lossless, 12, 2.5, ""),
        RuntimeOutcome("openvino", None, None, 0, 0.0, "the model does not export to ONNX: <script>"),
    )
    text = write_report(replace(encoder, runtimes=outcomes), tmp_path / "r.html").read_text()
    assert "<h2>Runtimes</h2>" in text and "2.5 s" in text
    assert "does not export to ONNX: &lt;script&gt;" in text
    alone = write_report(replace(encoder, runtimes=outcomes[:1]), tmp_path / "r.html").read_text()
    assert "<h2>Runtimes</h2>" not in alone
