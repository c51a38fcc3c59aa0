"""One budget of measured runs that several searches share, kept in a journal as it is spent."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autoprec.envs.space import FORMAT_NAMES, Assignment, Trial
from autoprec.errors import UserError, one_line

Finite = Annotated[float, Field(allow_inf_nan=False)]
LOCK_SECONDS = 30.0
"""How long to wait for a journal whose last owner was killed and whose processes may still be ending."""


class JournalError(UserError):
    """The journal of a shared budget cannot be read or written, or is another search's."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _Head(_Record):
    schema_version: Literal["autoprec.shared-runs/1"] = Field(
        default="autoprec.shared-runs/1", alias="schema"
    )
    search: str
    budget: int


class _Run(_Record):
    formats: list[str]
    ok: bool
    time: Finite | None
    bytes: Finite | None
    drop: Finite | None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    drop_error: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class _Given(_Record):
    """A run that was given to a search: measured for it, or an earlier one that another had asked for."""

    to: str
    searcher: str
    run: _Run | Annotated[int, Field(ge=0)]


class SharedRuns:
    """Measures plans one at a time for several searches, each plan once, until one budget is spent.

    Every run is in the journal, a file of JSON lines, before anybody hears of it; made again on the same
    file, the object knows what it knew. It is meant to live in a process of its own (`ray_tune`), and holds
    the journal's lock as long as it lives. Not thread-safe.

    Args:
        path: The journal; made where it does not exist.
        search: Says which search the journal belongs to, word for word.
        budget: Most measured runs.
        evaluate: Measures a plan; its second argument is who proposed it.

    Raises:
        JournalError: The journal is another search's, damaged, cannot be written, or is in use.
    """

    def __init__(
        self, path: Path, search: str, budget: int, evaluate: Callable[[Assignment, str], Trial]
    ) -> None:
        self._budget = budget
        self._runs: list[Trial] = []
        self._path = path
        self._evaluate = evaluate
        self._number: dict[Assignment, int] = {}
        self._given: dict[str, list[Trial]] = {}
        self._paid: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        self._failure: str | None = None
        self._lock = FileLock(path.with_suffix(".lock"))
        try:
            self._lock.acquire(timeout=LOCK_SECONDS)
            self._read(_Head(search=search, budget=budget))
            self._file = path.open("a", encoding="utf-8")
        except Timeout:
            raise JournalError(f"{str(path)!r} is in use by another process; wait until it ends") from None
        except OSError as error:
            raise JournalError(f"cannot use {str(path)!r}: {error.strerror or error}") from error

    def ask(self, name: str, plan: Assignment, searcher: str) -> Trial | None:
        """Return the run of a plan to the search `name`: measured now, or the one that there is.

        `None` where the plan was never measured and the budget is spent, or a measured run broke down
        (`failure`). A plan that was measured for another search costs nothing.
        """
        number = self._number.get(plan)
        if number is None:
            if len(self._runs) >= self._budget or self._failure is not None:
                return None
            try:
                trial = self._evaluate(plan, searcher)
            except Exception as error:  # whatever it is, it ends the search: `failure` tells
                self._failure = str(error) if isinstance(error, UserError) else one_line(error)
                return None
            run: _Run | int = _Run(
                formats=[FORMAT_NAMES[index] for index in plan],
                ok=trial.ok,
                time=_null(trial.time),
                bytes=_null(trial.bytes),
                drop=_null(trial.drop),
                share=trial.share,
                drop_error=trial.drop_error,
            )
        else:
            trial, run = self._runs[number], number
        self._write(_Given(to=name, searcher=searcher, run=run))
        return self._take(name, searcher, trial, new=number is None)

    def given(self, name: str) -> list[Trial]:
        """Return what a search was given so far, in order: all there is to know to go on with it."""
        return list(self._given.get(name, ()))

    def paid(self, name: str) -> int:
        """Return how many runs were measured for a search, those that it shared left out."""
        return self._paid.get(name, 0)

    def measured(self) -> list[Trial]:
        """Return every measured run, in order."""
        return list(self._runs)

    def spent(self) -> bool:
        """Say whether no more run will be measured."""
        return len(self._runs) >= self._budget or self._failure is not None

    def failure(self) -> str | None:
        """Return why measuring broke down, or `None`; a plan that fails is no breakdown."""
        return self._failure

    def end(self, name: str, reason: str) -> None:
        """Note, until this object goes, why a search ended by itself."""
        self._ended[name] = reason

    def ended(self, name: str) -> str | None:
        """Return why a search ended by itself, or `None` where it did not."""
        return self._ended.get(name)

    def close(self) -> None:
        """Let go of the journal; a process that ends does so too."""
        self._file.close()
        self._lock.release()

    def _take(self, name: str, searcher: str, trial: Trial, *, new: bool) -> Trial:
        if new:
            self._number[trial.assignment] = len(self._runs)
            self._runs.append(trial)
            self._paid[name] = self._paid.get(name, 0) + 1
        own = replace(trial, searcher=searcher)
        self._given.setdefault(name, []).append(own)
        return own

    def _write(self, record: _Record) -> None:
        self._file.write(record.model_dump_json(by_alias=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, head: _Head) -> None:
        """Take in the journal, or begin it. A last line that was cut short by a kill is dropped."""
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            self._path.write_text(head.model_dump_json(by_alias=True) + "\n", encoding="utf-8")
            return
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                if number == 1:
                    self._check(head, _Head.model_validate_json(line))
                else:
                    self._replay(_Given.model_validate_json(line))
            except (ValidationError, ValueError, IndexError):
                raise JournalError(
                    f"line {number} of {str(self._path)!r} is not valid; cut the file off before it, or use "
                    "another folder"
                ) from None
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))

    def _check(self, wanted: _Head, found: _Head) -> None:
        if found.search != wanted.search:
            raise JournalError(
                f"{str(self._path)!r} is of another search (other landscape, goal or candidates); use "
                "another folder"
            )
        if found.budget != wanted.budget:
            raise JournalError(
                f"{str(self._path)!r} is of a search of {found.budget} runs, not {wanted.budget}; use the "
                "same number, or another folder"
            )

    def _replay(self, record: _Given) -> None:
        run = record.run
        if isinstance(run, int):
            trial = self._runs[run]
        else:
            plan = tuple(FORMAT_NAMES.index(name) for name in run.formats)
            figures = (_nan(run.time), _nan(run.bytes), _nan(run.drop))
            trial = Trial(plan, run.ok, *figures, record.searcher, run.share, run.drop_error)
        self._take(record.to, record.searcher, trial, new=not isinstance(run, int))


def _null(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _nan(value: float | None) -> float:
    return np.nan if value is None else value
