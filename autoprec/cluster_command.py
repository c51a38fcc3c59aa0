"""What `autoprec submit` and `autoprec jobs` do and print."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from autoprec.cluster.handle import SubmittedJob, state_of
from autoprec.cluster.submitting import resume, submit
from autoprec.store.records import Job, utc_now
from autoprec.store.store import Store
from autoprec.terminal import make_console


def run_submit(workload: str, **options: Any) -> int:
    """Submit a job and say how to hear of it; return the exit code."""
    job = submit(workload, **options)
    return _told(job)


def run_resume(job_id: str, address: str | None, store: str | None) -> int:
    """Go on with a job; return the exit code."""
    return _told(resume(job_id, address=address, store=store))


def run_list(store: str | None, state: Any, limit: int) -> int:
    """Print the jobs of the store; return the exit code."""
    console = make_console()
    table = Table("job", "workload", "state", "phase", "runs", "best", "owner", "age")
    with Store.open(store) as opened:
        for job in opened.jobs(limit=limit, state=state):
            age = (utc_now() - job.created_at).total_seconds()
            table.add_row(
                job.id, job.workload, state_of(opened, job), job.phase, _runs(job),
                _best(job), job.owner or "", _duration(age),
            )  # fmt: skip
    console.print(table if table.row_count else "There are no such jobs in the store.")
    return 0


def run_show(job_id: str, store: str | None) -> int:
    """Print all that the store knows of a job; return the exit code."""
    console = make_console()
    with Store.open(store) as opened:
        job = opened.job(job_id)
        runs = opened.job_runs(job_id)
        plans = opened.plans(job_id=job_id, limit=None)
        table = Table(show_header=False, box=None)
        rows = {
            "job": job.id,
            "workload": job.workload,
            "owner": job.owner or "",
            "state": state_of(opened, job),
            "phase": job.phase,
            "message": job.message or "",
            "cluster": job.address or "",
            "objective": str(job.settings.get("objective", "")),
            "limit": str(job.settings.get("max_quality_drop") or "none: the whole front"),
            "budget": str(job.settings.get("budget") or "default"),
            "runs": f"{len(runs)}, {sum(run.cached for run in runs)} of them from other jobs, "
            f"{sum(run.status == 'failed' for run in runs)} failed",
            "time": _duration(job.elapsed_seconds),
            "created": job.created_at.isoformat(timespec="seconds"),
            "heard of": "" if job.heartbeat_at is None else job.heartbeat_at.isoformat(timespec="seconds"),
        }
        for name, value in rows.items():
            if value:
                table.add_row(name, value)
        console.print(table)
        if plans:
            found = Table("plan", "kept as", "speedup", "drop", "weights")
            for plan in plans:
                found.add_row(
                    str(plan.id), plan.role, f"{plan.speedup:.3f}x", f"{plan.quality_drop:.4g}",
                    f"{plan.plan_bytes / 1e6:.3g} MB",
                )  # fmt: skip
            console.print(found)
        for note in job.progress.get("notes", ()):
            console.print(f"Note: {note}", soft_wrap=True, markup=False)
    return 0


def run_logs(job_id: str, store: str | None, *, follow: bool) -> int:
    """Print what a job's driver printed; return the exit code."""
    console = make_console()
    for text in SubmittedJob(job_id, store=store).logs(follow=follow):
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    return 0


def run_stop(job_id: str, store: str | None) -> int:
    """Stop a job; return the exit code."""
    SubmittedJob(job_id, store=store).stop()
    make_console().print(f"Stopped job {job_id}. To go on: autoprec jobs resume {job_id}", soft_wrap=True)
    return 0


def _told(job: SubmittedJob) -> int:
    """Say that a job is under way, and how to hear of it."""
    console = make_console()
    record = job.record()
    console.print(f"Job {job.id} of {record.workload} is {record.state} on {record.address}", soft_wrap=True)
    console.print(
        f"To see it: autoprec jobs show {job.id}, autoprec jobs logs {job.id} --follow", soft_wrap=True
    )
    return 0


def _runs(job: Job) -> str:
    runs, most = job.progress.get("runs"), job.progress.get("max_runs")
    if runs is None:
        return ""
    return f"{runs}/{most}" if most else str(runs)


def _best(job: Job) -> str:
    """Return the best figure so far of what the job makes small."""
    memory = job.settings.get("objective") == "memory"
    best = job.progress.get("best_bytes" if memory else "best_speedup")
    if best is None:
        return ""
    return f"{best / 1e6:.3g} MB" if memory else f"{best:.2f}x"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
