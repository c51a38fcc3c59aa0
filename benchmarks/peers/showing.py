"""The results as tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console

from benchmarks.common import table
from benchmarks.peers.choices import PeerResult, Ratio


def show(document: dict[str, Any]) -> None:
    """Print what `run` kept."""
    rows, where = document["rows"], document["where"]
    state = "quiet machine" if rows["quiet"] else "NOT a quiet machine: timings are not fit to publish"
    peers = [PeerResult.model_validate(peer) for peer in rows["peers"]]
    machine = f"{where['device']}, {where['threads']} threads, {state}"
    title = f"{rows['workload']}, drop at most {rows['limit']}, {machine}"
    table(
        title,
        [
            *(_peer(peer, rows["on_our_kernels"].get(peer.peer)) for peer in peers),
            *(_ours(job) for job in rows["autoprec"]),
        ],
    )
    console = Console(width=160)
    for peer in peers:
        if peer.status == "ok":
            counts = Counter(peer.choices.values()) | Counter(
                {f"{kind} beyond layers": count for kind, count in peer.beyond.items()}
            )
            console.print(
                f"{peer.peer}: {peer.call}; "
                + ", ".join(f"{count} {recipe}" for recipe, count in counts.items())
                + "".join(f"; {note}" for note in (peer.no_speed, *peer.notes) if note)
            )
            for note in rows["on_our_kernels"][peer.peer]["notes"]:
                console.print(f"  {note}")
        else:
            console.print(f"{peer.peer} did not run: {peer.reason}")


def _peer(peer: PeerResult, chosen: dict[str, Any] | None) -> dict[str, Any]:
    if peer.status != "ok":
        return dict.fromkeys(_COLUMNS, "") | {"tool": peer.peer, "its own executable": "did not run"}
    assert chosen is not None
    on_ours = chosen.get("failed") or str(Ratio.model_validate(chosen["speed"]))
    over = chosen.get("autoprec_over_it")
    return dict.fromkeys(_COLUMNS, "") | {
        "tool": f"{peer.peer} {peer.version}",
        "judged": peer.evaluations,
        "search s": peer.seconds,
        "its own executable": f"{peer.speed} ({peer.executable})"
        if peer.speed
        else f"none: {peer.executable}",
        "its drop": f"{peer.drop:.5f}",
        "choices on our kernels": on_ours,
        "drop": f"{chosen['drop']:.5f}" if "drop" in chosen else "",
        "AutoPrec over it": str(Ratio.model_validate(over)) if over else "",
    }


def _ours(job: dict[str, Any]) -> dict[str, Any]:
    judged = f"{job['evaluations']} + {job['final_evaluations']} held out"
    known = {"tool": job["title"], "judged": judged, "search s": job["seconds"]}
    if "failed" in job:
        return dict.fromkeys(_COLUMNS, "") | known | {"choices on our kernels": job["failed"]}
    speed, drop = str(Ratio.model_validate(job["speed"])), f"{job['drop']:.5f}"
    own = {"its own executable": f"{speed} ({job['runtime']})", "its drop": drop}
    on_ours = {"choices on our kernels": speed, "drop": drop} if job["runtime"] == "eager" else {}
    return dict.fromkeys(_COLUMNS, "") | known | own | on_ours


_COLUMNS = (
    "tool",
    "judged",
    "search s",
    "its own executable",
    "its drop",
    "choices on our kernels",
    "drop",
    "AutoPrec over it",
)
