"""What a running job tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from autoprec.envs.space import Trial


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a search stands after a measured run.

    Attributes:
        runs: Runs used, of the budget.
        max_runs: Runs that may be used, or `None` for a budget in time alone.
        runs_before: Of them, those of before this process began to search.
        seconds: Wall time used.
        searching: Wall time of this process's search.
        max_seconds: Wall time that may be used, or `None`.
        best: The cheapest plan so far that meets the goal, as measured in the search.
        last: The run that just finished.
    """

    runs: int
    max_runs: int | None
    runs_before: int
    seconds: float
    searching: float
    max_seconds: float | None
    best: Trial | None
    last: Trial | None


class Progress:
    """Receives what happens. This one is silent; override what you want to show."""

    def phase(self, name: str, detail: str = "", share: float | None = None) -> None:
        """Enter a phase, or go on in it; `share` is the part of it that is done, 0 to 1."""

    def standing(self, standing: Standing) -> None:
        """Hear of a finished measured run."""

    def note(self, text: str) -> None:
        """Hear of something the user should know."""
