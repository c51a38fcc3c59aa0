"""What `autoprec policy` does: train, list, show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autoprec.agents.policy_choice import origin_of, starting_policy
from autoprec.agents.policy_file import Policy, PolicyError, import_policy, refusal
from autoprec.agents.pretrain import (
    KEEP_EVERY,
    pretrain,
    pretrained_policy,
    read_policy,
    recipe,
    write_policy,
)
from autoprec.envs.landscape import Landscape
from autoprec.errors import SettingError
from autoprec.store.records import StoredPolicy
from autoprec.store.store import Store
from autoprec.terminal import INTERRUPTED, make_console

FILE = "policy.json"
SHIPPED_ID = "shipped"


def run_train(
    iterations: int,
    seed: int,
    landscapes: Sequence[Path],
    store: str | None,
    name: str,
    out: Path | None,
    *,
    resume: bool,
) -> int:
    """Train a policy and keep it, in the store or a directory; return the exit code.

    Raises:
        LandscapeError: A landscape cannot be read.
        PolicyError: What is to be gone on with cannot be used, or the files cannot be written.
    """
    console = make_console()
    recorded = [Landscape.load(path) for path in landscapes]
    if out is not None:
        file = out / FILE
        found = [read_policy(file)] if resume and file.exists() else []

        def keep(policy: Policy) -> None:
            write_policy(file, policy)

        trained = _train(console, iterations, seed, recorded, found, keep, resume=resume)
        if trained is None:
            return INTERRUPTED
        write_policy(file, trained)
        console.print(f"Policy: {file}", soft_wrap=True)
        return 0
    with Store.open(store) as opened:
        unfinished = f"{name} (unfinished)"
        rows = [*opened.policies(name=unfinished), *opened.policies(name=name)] if resume else []

        def keep_row(policy: Policy) -> None:
            opened.save_policy(unfinished, policy.meta, policy.weights, replace=True)

        trained = _train(console, iterations, seed, recorded, map(_policy_of, rows), keep_row, resume=resume)
        if trained is None:
            return INTERRUPTED
        number = opened.save_policy(name, trained.meta, trained.weights)
        opened.forget_policies(unfinished)
        console.print(f"Policy: {number} ({name}) of {opened.location}", soft_wrap=True)
    return 0


def run_list(store: str | None) -> int:
    """List the policies of the store and the shipped one; return the exit code."""
    console = make_console()
    table = Table("id", "name", "made", "iterations", "use")
    with Store.open(store) as opened:
        start = starting_policy(opened, lambda text: None)
        for found in opened.policy_entries():
            shown = _marked(str(found.id), origin_of(found), start)
            made = f"{found.created_at:%Y-%m-%d %H:%M}"
            table.add_row(shown, found.name, made, *_in_short(found.meta))
        try:
            shipped = pretrained_policy()
            table.add_row(_marked(SHIPPED_ID, shipped.origin, start), "", "", *_in_short(shipped.meta))
        except PolicyError as error:
            table.add_row(SHIPPED_ID, "", "", "", str(error))
        console.print(table)
    return 0


def run_show(policy_id: str, store: str | None) -> int:
    """Show how a policy was made; return the exit code, 1 where it cannot be used.

    Raises:
        SettingError: The id is none.
        StoreError: There is no such policy.
    """
    console = make_console()
    if policy_id == SHIPPED_ID:
        policy = pretrained_policy()
        console.print("shipped with the package")
    else:
        if not policy_id.isdecimal():
            raise SettingError(f"policy {policy_id!r}: give an id of autoprec policy list, or {SHIPPED_ID}")
        with Store.open(store) as opened:
            found = opened.policy(int(policy_id))
        policy = _policy_of(found)
        console.print(f"{found.name}, made {found.created_at:%Y-%m-%d %H:%M}", soft_wrap=True)
    console.print(json.dumps(policy.meta.get("training"), indent=1), soft_wrap=True)
    try:
        state = import_policy(policy)
    except PolicyError as error:
        console.print(f"Cannot be used here: {error}", soft_wrap=True)
        return 1
    console.print(
        f"{sum(value.numel() for value in state.values())} weights, {len(policy.weights) / 1e3:.0f} kB; "
        "can be used here"
    )
    return 0


def _train(
    console: Console,
    iterations: int,
    seed: int,
    recorded: Sequence[Landscape],
    found: Iterable[Policy],
    keep: Callable[[Policy], None],
    *,
    resume: bool,
) -> Policy | None:
    """Train on from the furthest of the policies of the same recipe; return `None` where it was stopped."""
    start = max(
        (policy for policy in found if _same_recipe(policy.meta, recipe(seed, recorded), iterations)),
        key=lambda policy: int(policy.meta["training"]["iterations"]),
        default=None,
    )
    if start is not None:
        console.print(f"Going on after {start.meta['training']['iterations']} iterations")
    elif resume:
        console.print("Note: no training of this recipe to go on with: starting a new one")
    recent: list[float] = []

    def progress(done: int, reward: float) -> None:
        recent.append(reward)
        if done % KEEP_EVERY == 0 or done == iterations:
            console.print(f"{done} of {iterations} iterations, mean reward {sum(recent) / len(recent):+.3f}")
            recent.clear()

    try:
        return pretrain(seed, iterations, recorded, start, progress, keep)
    except KeyboardInterrupt:
        console.print("\nStopped; what was trained is kept. To go on, give the same command with --resume")
        return None


def _same_recipe(meta: Mapping[str, Any], wanted: Mapping[str, Any], iterations: int) -> bool:
    training = meta.get("training")
    if not isinstance(training, dict) or refusal(meta) is not None:
        return False
    same = all(training.get(key) == value for key, value in wanted.items() if key != "versions")
    return same and 0 < int(training.get("iterations", 0)) <= iterations


def _policy_of(found: StoredPolicy) -> Policy:
    return Policy(found.meta, found.weights, origin_of(found))


def _marked(shown: str, origin: str, start: Policy | None) -> str:
    return f"{shown} *" if start is not None and origin == start.origin else shown


def _in_short(meta: Mapping[str, Any]) -> tuple[str, str]:
    training = meta.get("training")
    iterations = training.get("iterations", "") if isinstance(training, dict) else ""
    return str(iterations), refusal(meta) or "can be used"
