"""AutoPrec beside other tools, each in its own virtual environment.

python -m benchmarks.peers setup [PEER ...]
python -m benchmarks.peers run [--workload minilm] [--limit 0.005] [--quiet]
python -m benchmarks.peers show [--workload minilm]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.peers.choices import PeerResult, failed, last_error
from benchmarks.peers.venvs import PEERS, ROOT, default_place, environment, make_venv, python_of

PEER_SECONDS = 400
"""After which a peer is ended, and named as failed."""


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, default=default_place(), help="where the environments lie")
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="make the environments of the peers named, or of all")
    setup.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    run = commands.add_parser("run", help="measure, print and keep the results")
    run.add_argument("--peers", nargs="*", default=list(PEERS), metavar="PEER")
    run.add_argument("--limit", type=float, default=0.005, help="largest drop of quality, absolute")
    run.add_argument("--evaluations", type=int, default=20, help="most judgements that a peer may take")
    run.add_argument("--budgets", type=int, nargs="+", default=[20, 40], help="measured runs of AutoPrec")
    run.add_argument("--all-runtimes", type=int, default=40, help="the same with --runtime all; 0 for none")
    run.add_argument("--quiet", action="store_true", help="say that nothing else runs on the machine")
    run.add_argument("--again", action="store_true", help="also run peers of which a result is kept")
    show = commands.add_parser("show", help="print what was measured last")
    for command in (run, show):
        command.add_argument("--workload", default="minilm", help="a ready-made workload")
    asked = parser.parse_args()
    if unknown := [name for name in getattr(asked, "peers", ()) if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    if asked.command == "setup":
        sys.exit(_setup(asked.peers or list(PEERS), asked.venvs))
    if asked.command == "run":
        _run(asked)
    _show(asked.workload)


def _setup(peers: list[str], place: Path) -> int:
    """Make environments; one that fails does not stop the others. Return how many failed."""
    lost = 0
    for peer in peers:
        try:
            make_venv(peer, place)
        except subprocess.CalledProcessError as error:
            lost += 1
            sys.stderr.write(f"{peer}: not made: {error}\n")
        else:
            print(f"{peer}: {python_of(peer, place)}")
    return lost


def _run(asked: argparse.Namespace) -> None:
    from autoprec.finding import ready_made
    from benchmarks.common import save
    from benchmarks.peers.ours import OurKernels, tuned

    known = ready_made()
    if asked.workload not in known:
        sys.exit(f"unknown workload {asked.workload!r}; known: {', '.join(sorted(known))}")
    place = known[asked.workload]
    peers = [_peer(name, place, asked) for name in asked.peers]
    jobs = [tuned(place, asked.limit, budget) for budget in asked.budgets]
    kernels = OurKernels(place)
    measured = [{**_named(job), **kernels.measure(job.plan)} for job in jobs]
    chosen = {}
    for peer in peers:
        if peer.status == "ok":
            plan, notes = kernels.plan_of(peer.choices)
            # The longest job of ours is timed beside it, so that the two share every disturbance.
            chosen[peer.peer] = {
                **kernels.measure(plan),
                "autoprec_over_it": kernels.measure(jobs[-1].plan, beside=plan).get("over"),
                "notes": notes,
            }
    if asked.all_runtimes:
        job = tuned(place, asked.limit, asked.all_runtimes, "all")
        measured.append({**_named(job), **kernels.measure(job.plan)})
    rows = {
        "quiet": asked.quiet,
        "workload": asked.workload,
        "limit": asked.limit,
        "peers": [peer.model_dump() for peer in peers],
        "on_our_kernels": chosen,
        "autoprec": measured,
    }
    save(f"peers-{asked.workload}", rows)


def _named(job: Any) -> dict[str, Any]:
    return {
        "title": job.title,
        "evaluations": job.evaluations,
        "final_evaluations": job.final,
        "seconds": round(job.seconds, 1),
    }


def _peer(name: str, place: str, asked: argparse.Namespace) -> PeerResult:
    """Return what a peer came to: as kept, where that was measured as is asked for now, or measured."""
    kept = asked.venvs / f"{name}-{asked.workload}-{asked.limit}-{asked.evaluations}.json"
    if kept.exists() and not asked.again:
        try:
            result = PeerResult.model_validate_json(kept.read_text(encoding="utf-8"))
        except ValidationError:
            pass
        else:
            if result.status == "ok" and result.quiet >= asked.quiet:
                return result
    result = _measure_peer(name, place, asked)
    print(f"{name}: {result.status} {result.reason}", flush=True)
    if result.status == "ok":
        kept.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return result


def _measure_peer(name: str, place: str, asked: argparse.Namespace) -> PeerResult:
    python = python_of(name, asked.venvs)
    if not python.exists():
        return failed(
            name, f"no environment; run: python -m benchmarks.peers setup {name}", quiet=asked.quiet
        )
    command = [str(python), "-m", "benchmarks.peers.child", PEERS[name], place, str(asked.limit)]
    started = time.perf_counter()
    try:
        child = subprocess.run(
            [*command, str(asked.evaluations)],
            check=False,
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PEER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return failed(name, f"not done after {time.perf_counter() - started:.0f} s", quiet=asked.quiet)
    if child.returncode:
        return failed(name, last_error(child.stderr), quiet=asked.quiet)
    return PeerResult.model_validate_json(child.stdout).model_copy(update={"quiet": asked.quiet})


def _show(workload: str) -> None:
    from benchmarks.common import RESULTS
    from benchmarks.peers.showing import show

    path = RESULTS / f"peers-{workload}.json"
    if not path.exists():
        sys.exit(
            f"{workload} was not measured yet; run: python -m benchmarks.peers run --workload {workload}"
        )
    show(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
