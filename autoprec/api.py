"""AutoPrec from Python: tune a workload, ask the store for its best plan, check a plan."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoprec.checking import CheckResult, check_plan
from autoprec.envs.space import Goal, Objective, purpose_of
from autoprec.errors import PlanError, SettingError
from autoprec.finding import load_workload
from autoprec.fingerprint import architecture_fingerprint
from autoprec.job import TuningJob
from autoprec.kernels.device import CPU, devices_of
from autoprec.plan import EAGER, Plan
from autoprec.predicting import known_of, rank_of
from autoprec.predicting import predict_plan as predict
from autoprec.prepare import measured_device
from autoprec.progress import Progress
from autoprec.report import write_report
from autoprec.result import TuneResult
from autoprec.runtimes.available import DATA_FILE, GRAPH_RUNTIMES, MODEL_FILE, RUNTIMES, model_files
from autoprec.runtimes.calls import MOST_FORMS
from autoprec.runtimes.written import written_and_foreign
from autoprec.settings import TuneSettings
from autoprec.store.records import PlanState, StoredPlan
from autoprec.store.store import Store
from autoprec.workload import describe_inputs


def tune(
    workload: Any,
    *,
    objective: Objective = "latency",
    max_quality_drop: str | float | None = None,
    max_memory: str | int | None = None,
    budget: str | int | None = None,
    runtime: str = EAGER,
    searcher: str = "portfolio",
    formats: str | Sequence[str] | None = None,
    seed: int = 0,
    groups: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    fresh: bool = False,
    store: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the best precision plan of a workload by measuring it on this machine.

    Args:
        workload: `file.py:name`, `package.module:name`, a ready-made name, or a workload class or instance.
        objective: What to make small: `latency` or `throughput` (time of a run), or `memory`.
        max_quality_drop: Absolute (0.005) or relative (`"1%"`); `None` for the whole Pareto front.
        max_memory: Limit on bytes held by weights: bytes, `"80MB"` or `"40%"`.
        budget: Measured runs (200) or wall time (`"20m"`); by default what suits the model's size.
        runtime: What executes the model: `eager`, `compile`, `onnxruntime`, `openvino`, or `all` to compare.
        searcher: Who proposes plans.
        formats: Formats to choose from; by default all that run natively here.
        seed: Seed of the searchers.
        groups: Regular expressions; the modules that one matches in full share one decision.
        exclude: Regular expressions of modules to leave as they came.
        fresh: Measure and profile everything, whatever the store holds from other jobs.
        store: URL or file of the store; by default `AUTOPREC_STORE` or a file in the user's data directory.
        out: Directory for `plan.json`, `report.html` and the model files of a graph runtime's plan; nothing
            is written where it is `None`. Model files of an earlier job in it go; anybody else's stay, and
            are refused where a runtime that writes such files is asked for.
        resume: Go on with the newest unfinished job of the same settings.
        progress: Hears what happens.

    Raises:
        UserError: An argument, the workload or the store cannot be used.
    """
    loaded = load_workload(workload)
    settings = TuneSettings.check(
        workload=loaded.reference,
        objective=objective,
        max_quality_drop=max_quality_drop,
        max_memory=max_memory,
        budget=budget,
        runtime=runtime,
        searcher=searcher,
        formats=formats,
        seed=seed,
        groups=groups,
        exclude=exclude,
        fresh=fresh,
    )
    with Store.open(store) as opened:
        # A place that cannot be written to must not come out after the search.
        folder = None if out is None else _make_directory(out)
        if folder is not None and GRAPH_RUNTIMES.keys() & settings.runtimes:
            _refuse_foreign(folder)
        job = TuningJob(settings, opened, progress or Progress(), resume=resume, workload=loaded, out=folder)
        result = job.run()
    if out is not None:
        save_result(result, out)
    return result


def save_result(result: TuneResult, directory: str | Path) -> tuple[Path, Path]:
    """Write `plan.json` (the best plan, or the lossless one) and `report.html`; return their paths.

    Raises:
        PlanError: A file cannot be written.
    """
    folder = _make_directory(directory)
    plan = (result.best or result.lossless).save(folder / "plan.json")
    return plan, write_report(result, folder / "report.html")


def best_plan(
    workload: Any,
    *,
    objective: Objective = "latency",
    max_quality_drop: float | None = None,
    max_memory: str | int | None = None,
    runtime: str | None = EAGER,
    device: str | None = None,
    anywhere: bool = False,
    state: PlanState | None = None,
    store: str | None = None,
) -> Plan | None:
    """Return the best plan that the store holds for a workload and that is not retired, or `None`.

    A plan counts for a workload where the architecture, the inputs that are timed and the meaning of quality
    are the same; the weights may differ, as a trainer's always do. For a fingerprint the architecture counts.

    Args:
        workload: What `tune` takes, or the architecture fingerprint of a model.
        objective: What the plan should make small.
        max_quality_drop: Absolute limit on the measured drop. Without one, only what a job called best
            counts, within the limits that job was given.
        max_memory: Limit on bytes held by weights: bytes, or `"80MB"`.
        runtime: What executes it; `apply_plan` takes plans of `eager` and `compile`. `None` for any.
        device: Name of the device that it was measured on, with any number of threads; by default this one,
            with the number of threads that are used here.
        anywhere: Also plans that were measured on other devices or with other numbers of threads.
        state: Where it stands in its life cycle, such as `deployed`; by default anywhere.
        store: See `tune`.

    Raises:
        UserError: The workload or the store cannot be used.
    """
    if runtime not in (None, *RUNTIMES):
        raise SettingError(f"unknown runtime {runtime!r}; use one of {', '.join(RUNTIMES)}, or None for any")
    if max_quality_drop is not None and not _is_limit(max_quality_drop):
        raise SettingError(
            f"max_quality_drop is {max_quality_drop!r}; best_plan takes an absolute number, 0 or more (0.005)"
        )
    if max_memory is not None and str(max_memory).strip().endswith("%"):
        raise SettingError(f"max_memory is {max_memory!r}; best_plan takes a size: bytes, or '80MB'")
    name = workload if isinstance(workload, str) else type(workload).__name__
    limits = TuneSettings.check(workload=name, objective=objective, max_memory=max_memory)
    with Store.open(store) as opened:
        found = opened.best_plan(
            **_wanted(workload, objective, device=device, anywhere=anywhere),
            runtime=runtime,
            max_quality_drop=max_quality_drop,
            max_bytes=limits.byte_limit(1),
            state=state,
            # A front reaches down to plans of any quality: without a limit they are not what is wanted.
            role="best" if max_quality_drop is None else None,
        )
    return None if found is None else found.read()


def plans(
    *,
    workload: str | None = None,
    architecture: str | None = None,
    device: str | None = None,
    runtime: str | None = None,
    objective: Objective | None = None,
    state: PlanState | None = None,
    job: str | None = None,
    limit: int | None = 100,
    store: str | None = None,
) -> list[StoredPlan]:
    """Return the plans of the store that match everything given, the newest first.

    Args:
        workload: Reference of the workload, as its job was given it.
        architecture: Fingerprint of the model's structure.
        device: Name of the device that they were measured on.
        runtime: What executes them.
        objective: What their job made small.
        state: Where they stand in their life cycle.
        job: Id of the job that found them.
        limit: Most plans; `None` for all.
        store: See `tune`.

    Raises:
        StoreError: The store cannot be used.
    """
    with Store.open(store) as opened:
        return opened.plans(
            workload=workload,
            architecture=architecture,
            device_name=device,
            runtime=runtime,
            objective=objective,
            state=state,
            job_id=job,
            limit=limit,
        )


def predict_plan(
    workload: Any,
    *,
    objective: Objective = "latency",
    max_quality_drop: str | float,
    max_memory: str | int | None = None,
    runtime: str | None = EAGER,
    device: str | None = None,
    anywhere: bool = False,
    store: str | None = None,
) -> Plan | None:
    """Return the plan that is expected to be best, from what the store holds, or `None`.

    `None` where no plan was measured, or the time budget of the jobs was too short for a whole profile.

    Nothing is measured: the plan has a prediction in place of evidence, and `check` measures it.

    Args:
        workload: See `best_plan`.
        objective: The same. Plans of `latency` and `throughput` are predicted from runs on such inputs.
        max_quality_drop: Limit on the drop, absolute (0.005) or relative (`"1%"`).
        max_memory: Limit on bytes held by weights: bytes, `"80MB"` or `"40%"`.
        runtime: What executes it; `None` for the one that is expected to be best.
        device: See `best_plan`.
        anywhere: The same.
        store: See `tune`.

    Raises:
        UserError: The workload, a limit or the store cannot be used.
    """
    name = workload if isinstance(workload, str) else type(workload).__name__
    settings = TuneSettings.check(
        workload=name,
        objective=objective,
        max_quality_drop=max_quality_drop,
        max_memory=max_memory,
        runtime=runtime or EAGER,
    )
    wanted = _wanted(workload, objective, device=device, anywhere=anywhere)
    predicted: list[Plan] = []
    with Store.open(store) as opened:
        for each in RUNTIMES if runtime is None else settings.runtimes:
            stored = opened.best_plan(**wanted, runtime=each)
            known = None if stored is None else known_of(opened, stored)
            if known is None:
                continue
            limit = settings.quality_limit(known.evidence.quality.baseline)
            assert limit is not None, "there is no default"
            goal = Goal(objective, limit, max_bytes=settings.byte_limit(known.evidence.baseline_bytes))
            predicted.append(predict(known, goal))
    return min(predicted, key=rank_of, default=None)


def _wanted(workload: Any, objective: Objective, *, device: str | None, anywhere: bool) -> dict[str, Any]:
    """Return what a stored plan has to be of, to count for a workload here."""
    place, wanted = CPU, dict[str, Any](objective=objective)
    if isinstance(workload, str) and re.fullmatch("[0-9a-f]{32}", workload):
        wanted["architecture"] = workload
    else:
        loaded = load_workload(workload)
        examples, model = loaded.examples(purpose_of(objective)), loaded.build_model()
        place = devices_of(model)[0]
        wanted["architecture"] = architecture_fingerprint(model)
        wanted["metric"] = loaded.quality_name
        wanted["shapes"] = [describe_inputs(example.inputs) for example in examples]
    if anywhere:
        return wanted
    if device is not None:
        return wanted | {"device_name": device}
    here = measured_device(place)
    return wanted | {"device_name": here.name, "threads": here.threads}


def check(plan: Plan | str | Path, workload: Any) -> CheckResult:
    """Measure a plan again, fresh, on this machine, and say whether its claim holds here.

    Args:
        plan: The plan, or the path of its file; a model file that was written beside it is what is measured.
        workload: What `tune` takes.

    Raises:
        UserError: The plan or the workload cannot be used, or they do not fit.
    """
    if isinstance(plan, Plan):
        return check_plan(plan, workload)
    folder = Path(plan).parent
    return check_plan(Plan.load(plan), workload, folder if (folder / MODEL_FILE).exists() else None)


def _is_limit(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _make_directory(directory: str | Path) -> Path:
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"cannot make directory {str(folder)!r} for the results: {reason}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PlanError(f"directory {str(folder)!r} cannot be written to; name another with out")
    for name in ("plan.json", "report.html", *model_files(MOST_FORMS), DATA_FILE):
        if (folder / name).is_dir():
            raise PlanError(
                f"{str(folder / name)!r} is a directory, where a file of the results goes: move it away, or "
                "name another directory with out"
            )
    return folder


def _refuse_foreign(folder: Path) -> None:
    """Refuse a directory in which model files of the user's own lie where a plan's would go."""
    if importlib.util.find_spec("onnx") is None:
        return  # no runtime that writes them can run
    _, foreign = written_and_foreign(folder)
    if foreign:
        raise PlanError(
            f"{str(foreign[0])!r} is not a job's, and a model file of the results may go there: "
            "name another directory with out"
        )
