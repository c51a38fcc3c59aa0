"""The commands that show something while they work: live progress, results as tables."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from autoprec.api import check, tune
from autoprec.envs.space import FORMAT_NAMES
from autoprec.finding import load_workload
from autoprec.live_landscape import live_landscape
from autoprec.plan import Evidence, Plan
from autoprec.progress import Progress, Standing
from autoprec.recording import record
from autoprec.result import TuneResult, runtime_rows
from autoprec.settings import TuneSettings
from autoprec.store.store import Store
from autoprec.terminal import INTERRUPTED, interval_text, make_console

if TYPE_CHECKING:
    from autoprec.benching import Wanted


def run_tune(workload: str, *, out: Path, store: str | None, resume: bool, **options: Any) -> int:
    """Tune with a live display; return the exit code."""
    console = make_console()
    try:
        with _shown(console) as progress:
            result = tune(workload, store=store, resume=resume, progress=progress, out=out, **options)
    except KeyboardInterrupt:
        given = (_without_password(arg) for arg in sys.argv[1:] if arg != "--resume")
        again = shlex.join([*given, "--resume"])
        console.print(f"\nStopped. Every finished run is kept. To go on: autoprec {again}", soft_wrap=True)
        return INTERRUPTED
    show_result(console, result)
    kept = "" if result.best is not None else " (the best lossless one: no plan meets the goal)"
    for file in result.artefacts:
        console.print(f"Model:  {file}", soft_wrap=True)
    console.print(
        f"Plan:   {out / 'plan.json'}{kept}\nReport: {out / 'report.html'}\n"
        f"Store:  {result.store} (job {result.job_id})",
        soft_wrap=True,
    )
    return 0 if result.best is not None else 1


def _shown(console: Console) -> LiveProgress | PlainProgress:
    """Return a display for a job, which Ctrl-C and SIGTERM stop from now on."""
    _stopped.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def run_record(workload: str, out: Path, runs: int, store: str | None, **options: Any) -> int:
    """Record a landscape with a live display; return the exit code."""
    console = make_console()
    settings = TuneSettings.check(workload=load_workload(workload).reference, **options)
    try:
        with _shown(console) as progress, Store.open(store) as opened:
            found = record(workload, settings, opened, runs, out, progress)
    except KeyboardInterrupt:
        console.print("\nStopped. What was measured is kept: the same command goes on.", soft_wrap=True)
        return INTERRUPTED
    whole = "every plan of the space" if found.complete else "plans that cover the space"
    console.print(f"{len(found.trials)} runs, {whole}: {out}", soft_wrap=True)
    return 0


def run_compare(
    wanted: Wanted, out: Path, jobs: int, live: str | None, store: str | None, **options: Any
) -> int:
    """Compare searchers on landscapes, and on the workload `live` by measuring it; return the exit code."""
    from autoprec.benching import run_bench_searchers

    console = make_console()
    try:
        with ExitStack() as stack:
            landscape = None
            if live is not None:
                settings = TuneSettings.check(workload=load_workload(live).reference, **options)
                opened = stack.enter_context(Store.open(store))
                with _shown(console) as progress:
                    landscape = stack.enter_context(live_landscape(live, settings, opened, progress))
            run_bench_searchers(wanted, out, jobs, landscape)
    except KeyboardInterrupt:
        console.print("\nStopped. What has ended is kept: the same command goes on.", soft_wrap=True)
        return INTERRUPTED
    return 0


def run_check(plan: Path, workload: str) -> int:
    """Check a plan and print the outcome; return the exit code."""
    console = make_console()
    loaded = Plan.load(plan)
    outcome = check(plan, workload)
    table = Table("", "claimed", "measured here")
    claim, found = loaded.evidence, outcome.measurement
    if found is not None:
        timing = found.timing
        table.add_row(
            "speedup",
            interval_text(claim.speedup.value, claim.speedup.low, claim.speedup.high) if claim else "",
            interval_text(timing.ratio, timing.low, timing.high) if timing else "emulated",
        )
        table.add_row(
            "quality drop", f"{claim.quality.drop:.4g}" if claim else "", f"{found.quality_drop:.4g}"
        )
        table.add_row(
            "weights", f"{claim.plan_bytes / 1e6:.3g} MB" if claim else "", f"{found.held_bytes / 1e6:.3g} MB"
        )
        console.print(table)
    for note in outcome.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    for reason in outcome.reasons:
        console.print(f"Does not hold: {reason}", soft_wrap=True)
    if outcome.holds:
        console.print("The claim holds here.")
    return 0 if outcome.holds is not False else 1


def show_result(console: Console, result: TuneResult) -> None:
    """Print the evidence table, the formats of the best plan, and the notes."""
    table = Table(
        "plan", "speedup", "over lossless", "drop", "weights", "found by",
        title=f"{result.workload}: {result.quality_name}", title_justify="left",
    )  # fmt: skip
    rows = [("best", result.best), ("best lossless", result.lossless), ("no quality limit", result.bound)]
    rows += [("front", plan) for plan in result.front]
    for name, plan in rows:
        if plan is not None and plan.evidence is not None:
            table.add_row(name, *_evidence_row(plan.evidence))
    console.print(table)
    if len(result.runtimes) > 1:
        console.print(_runtime_table(result))
    if result.best is not None:
        counts = dict.fromkeys(FORMAT_NAMES, 0)
        for unit in result.best.units:
            counts[unit.format] += 1
        formats = ", ".join(f"{n} units {name}" for name, n in counts.items() if n)
        console.print(f"Best plan: {formats}, run by {result.best.runtime}")
        for name, (before, after) in _reported(result.best).items():
            console.print(f"  {name}: {before:.4g} as it came, {after:.4g} under the plan")
    if result.failures:
        console.print(f"{len(result.failures)} plans failed; first: {result.failures[0][1]}", soft_wrap=True)
    if not result.compared:
        console.print("Note: the budget ended before any plan of lower precision was measured")
    for note in result.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    spent = result.spending
    runs = f"{result.tried} measured run{'s' * (result.tried != 1)}"
    console.print(
        f"{runs} ({result.cached} from the store); setup {spent.setup:.0f} s, "
        f"profile {spent.profile:.0f} s, measuring {spent.measuring:.0f} s, thinking {spent.thinking:.0f} s, "
        f"winners again {spent.fresh:.0f} s",
        soft_wrap=True,
    )


def _runtime_table(result: TuneResult) -> Table:
    """Return the best plan of each runtime beside its own lossless plan."""
    table = Table("runtime", "lossless", "best", "over lossless", "drop", "runs", "a run", "",
                  title_justify="left", title="Runtimes, each against the model as it came")  # fmt: skip
    for row in runtime_rows(result):
        table.add_row(*row)
    return table


class LiveProgress(Progress):
    """A live display for a terminal: phase, runs against budget, best so far, time left."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.fields[phase]:<18}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._task = self._bars.add_task("", phase="starting", text="", total=1.0)
        self._live = Live(self._bars, console=console, refresh_per_second=4)
        self._console = console

    def __enter__(self) -> LiveProgress:
        """Show the display."""
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Take the display away."""
        self._live.__exit__(*exception)

    def phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        """See `Progress`."""
        self._bars.update(self._task, phase=name, text=detail, completed=share or 0.0, total=1.0)

    def standing(self, standing: Standing) -> None:
        """See `Progress`."""
        _stop_if_asked()
        self._bars.update(self._task, text=describe(standing), completed=_share(standing), total=1.0)

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._console.print(f"Note: {text}", soft_wrap=True)


class PlainProgress(Progress):
    """Lines for a log: each phase, then a line at most every few seconds."""

    EVERY = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0
        self._phase = ""

    def __enter__(self) -> PlainProgress:
        """Do nothing: lines need no set-up."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Do nothing."""

    def phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        """See `Progress`."""
        if name != self._phase or (detail and self._due()):
            self._phase = name
            self._print(f"{name} {detail}".rstrip() + (f" ({share:.0%})" if share is not None else ""))

    def standing(self, standing: Standing) -> None:
        """See `Progress`."""
        _stop_if_asked()
        if self._due():
            self._print(f"{self._phase}: {describe(standing)}")

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._print(f"Note: {text}")

    def _due(self) -> bool:
        if time.monotonic() - self._last < self.EVERY:
            return False
        self._last = time.monotonic()
        return True

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def describe(standing: Standing) -> str:
    """Return one line on where a search stands."""
    runs = f"{standing.runs}/{standing.max_runs}" if standing.max_runs else str(standing.runs)
    best = standing.best
    found = (
        f"best {1 / best.time:.2f}x, drop {best.drop:.4g}, {best.bytes / 1e6:.3g} MB ({best.searcher})"
        if best
        else "none within the limits yet"
    )
    left = _seconds_left(standing)
    return f"{runs} runs, {found}" + (f", {_duration(left)} left" if left is not None else "")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _share(standing: Standing) -> float:
    shares = [0.0]
    if standing.max_runs:
        shares.append(standing.runs / standing.max_runs)
    if standing.max_seconds:
        shares.append(standing.seconds / standing.max_seconds)
    return min(1.0, max(shares))


def _seconds_left(standing: Standing) -> float | None:
    left = []
    if standing.max_seconds:
        left.append(standing.max_seconds - standing.seconds)
    if standing.max_runs:
        # The pace of this search: what came before it, and what was taken over, says nothing of it.
        done = standing.runs - standing.runs_before
        if done > 0:
            left.append((standing.max_runs - standing.runs) * standing.searching / done)
    return max(0.0, min(left)) if left else None


def _evidence_row(evidence: Evidence) -> tuple[str, str, str, str, str]:
    over = evidence.speedup_over_lossless
    smaller = evidence.baseline_bytes / max(1, evidence.plan_bytes)
    return (
        interval_text(evidence.speedup.value, evidence.speedup.low, evidence.speedup.high),
        interval_text(over.value, over.low, over.high) if over else "",
        f"{evidence.quality.drop:.4g}",
        f"{evidence.plan_bytes / 1e6:.3g} MB ({smaller:.2f}x smaller)",
        evidence.searcher,
    )


def _reported(plan: Plan) -> dict[str, tuple[float, float]]:
    return plan.evidence.quality.reported if plan.evidence else {}


def _without_password(argument: str) -> str:
    """Hide the password of a store's URL: what is printed here ends in logs."""
    return re.sub(r"(://[^:/@]*:)[^/]*@", r"\1***@", argument)


_stopped = threading.Event()
"""Set by a signal. An exception raised inside a callback or a destructor is swallowed there, so the next
measured run looks here too."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    _stopped.set()
    raise KeyboardInterrupt


def _stop_if_asked() -> None:
    if _stopped.is_set():
        raise KeyboardInterrupt
