"""Searchers as trials of Ray Tune, on one budget of measured runs that goes to those that are winning."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autoprec.agents.evaluate import gain, run_search
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.ray_process import TrialError, local_ray
from autoprec.agents.searcher import SEARCHERS, Problem, Searcher, make_searcher
from autoprec.agents.shared_runs import JournalError, SharedRuns
from autoprec.agents.warm_start import initial_plans
from autoprec.digest import Digest
from autoprec.envs.space import Assignment, Trial, best_trial
from autoprec.errors import AutoPrecError, SettingError

DEFAULTS = PPOSettings()
JOURNAL = "runs.jsonl"
TUNE_FILES = ".autoprec-tune"
"""Folder of Tune's own files, within the journal's."""
BATCH = 4
"""Most plans that a searcher proposes at once, as in every search."""
HALVING = 2
"""Each rung keeps one candidate in this many and asks for this many times the runs."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One trial: a searcher, its seed and, for `rl`, how its policy is trained.

    Raises:
        SettingError: The searcher is unknown, or is given PPO settings but trains nothing by itself.
    """

    searcher: str
    seed: int = 0
    ppo: PPOSettings = DEFAULTS

    def __post_init__(self) -> None:
        """Check the values."""
        if self.searcher not in SEARCHERS:
            raise SettingError(f"unknown searcher {self.searcher!r}; use one of {', '.join(SEARCHERS)}")
        if self.searcher != "rl" and self.ppo != DEFAULTS:
            raise SettingError(f"searcher {self.searcher!r} takes no PPO settings; only 'rl' does")

    @property
    def name(self) -> str:
        """The candidate in words, unlike every other's: `rl seed 0 lr=0.0003`."""
        changes = "".join(f" {name}={value:g}" for name, value in self.ppo.changes().items())
        return f"{self.searcher} seed {self.seed}{changes}"

    def make(self, problem: Problem) -> Searcher:
        """Return the searcher."""
        if self.searcher == "rl":
            from autoprec.agents.rl import RLSearcher

            return RLSearcher(problem, self.seed, settings=self.ppo)
        return make_searcher(self.searcher, problem, self.seed)


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    Attributes:
        candidate: The candidate.
        trials: The runs it was given, in order, whoever paid for them.
        paid: How many of them were measured for it.
        best: Its best run that meets the goal.
        gain: What that saves (`evaluate.gain`).
        ended: Why it ended: `halved` by the scheduler, `share used`, `budget spent` or `nothing left`.
    """

    candidate: Candidate
    trials: tuple[Trial, ...]
    paid: int
    best: Trial | None
    gain: float
    ended: str


@dataclass(frozen=True)
class TunedAgents:
    """What a Tune run found: every candidate, the best first, and every measured run, in order."""

    outcomes: tuple[Outcome, ...]
    runs: tuple[Trial, ...]


def tune_agents(
    problem: Problem,
    evaluate: Callable[[Assignment, str], Trial],
    candidates: Sequence[Candidate],
    budget: int,
    *,
    folder: str | Path,
    source: str = "",
    resume: bool = False,
    halve: bool = True,
    workers: int = 1,
    threads: int = 1,
    on_report: Callable[[str, int, float], None] = lambda name, runs, gain: None,
) -> TunedAgents:
    """Run searchers as Ray Tune trials that share measured runs and one budget.

    All begin with `initial_plans`, measured once for all. With `halve`, each then gets equally many runs of
    its own, the better half twice as many, and so on (Tune's HyperBand with one bracket, that is successive
    halving, Jamieson and Talwalkar 2016); the last takes what is left. Without, all get equal shares: that
    compares them fairly. A candidate learns only from runs that it asked for; the portfolio is the
    searcher whose members learn from each other.

    Args:
        problem: The problem.
        evaluate: Measures a plan; its second argument is who proposed it. It is sent (pickled) to one process
            of its own, where it is called for one plan at a time; what holds a model should build it there,
            at the first call.
        candidates: The trials, distinct.
        budget: Most measured runs of all together; a plan that several ask for is measured and counted once.
        folder: Takes the journal of measured runs, from which a killed search goes on, and Tune's own files.
        source: Says what `evaluate` measures, where the problem does not; it must be the same on resume.
        resume: Whether the folder may already hold this search; at most the run in flight is repeated.
        halve: Whether losers are stopped and winners go on.
        workers: How many candidates think at once. More than one disturbs the timing of real runs.
        threads: Threads of measured runs. A candidate thinks on one.
        on_report: Told a candidate's name, runs and gain after each batch.

    Raises:
        SettingError: The budget or the candidates cannot be used.
        JournalError: The folder is another search's, in use, or holds this one and `resume` is off.
        TrialError: Ray did not start, or a candidate broke down.
        AutoPrecError: A measured run broke down; what was measured before is kept.
    """
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) < len(names):
        raise SettingError(f"candidates is {', '.join(names) or 'empty'}; name at least one, each once")
    first = initial_plans(problem)
    share, batch = _share(budget, len(first), len(names), halve=halve)
    target = Path(folder).resolve()
    journal = (target / JOURNAL, _digest(problem, names, source, halve=halve), budget, evaluate)
    with _owned(target, resume=resume):
        SharedRuns(*journal).close()  # what is wrong with the journal is said before Ray starts
        with local_ray(target, workers + threads, len(names)):
            import ray

            shared = ray.remote(num_cpus=threads, max_restarts=0)(SharedRuns).remote(*journal)
            _compete(
                candidates,
                {"problem": problem, "shared": shared, "first": first, "batch": batch},
                None if halve else {"own": share},
                _scheduler(len(names), share) if halve else None,
                target,
                on_report,
            )
            if (failure := _get(shared.failure.remote())) is not None:
                raise AutoPrecError(f"a measured run broke down: {failure}; mend it and resume")
            outcomes = [_outcome(problem, shared, candidate, halve=halve) for candidate in candidates]
            runs = _get(shared.measured.remote())
    return TunedAgents(tuple(sorted(outcomes, key=lambda outcome: -outcome.gain)), tuple(runs))


def _compete(
    candidates: Sequence[Candidate],
    parameters: dict[str, Any],
    stop: dict[str, int] | None,
    scheduler: Any,
    folder: Path,
    on_report: Callable[[str, int, float], None],
) -> None:
    """Run the candidates as trials until all have ended.

    Raises:
        TrialError: One broke down.
    """
    from ray import tune

    results = tune.Tuner(
        tune.with_resources(tune.with_parameters(_run_candidate, **parameters), {"cpu": 1}),
        param_space={"candidate": tune.grid_search([asdict(candidate) for candidate in candidates])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=scheduler,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=TUNE_FILES,
            storage_path=str(folder),
            verbose=0,
            callbacks=[_reporter(on_report)],
            stop=stop,
        ),
    ).fit()
    for result in results:
        if result.error is not None:
            name = _candidate(result.config["candidate"]).name
            raise TrialError(f"candidate {name!r} broke down: {_last_line(result.error)}")


def _share(budget: int, first: int, count: int, *, halve: bool) -> tuple[int, int]:
    """Return each candidate's runs of its own up to the first rung (or in all), and the size of a batch."""
    work, live, target = count, count, 1
    while halve and live > 1:
        live, target = math.ceil(live / HALVING), target * HALVING
        work += live * (target - target // HALVING)
    if budget < first + work:
        raise SettingError(
            f"budget is {budget} measured runs; {count} candidates need {first + work} at least: the {first} "
            f"first plans and {work} to tell them apart"
        )
    share = (budget - first) // work
    batch = min(BATCH, share)
    return share // batch * batch, batch


def _run_candidate(
    config: dict[str, Any], *, problem: Problem, shared: Any, first: list[Assignment], batch: int
) -> None:
    """Run one candidate: the trainable.

    Its checkpoint is what it was given, which the journal never forgets. Begun again, after a pause or a
    kill, it repeats its reports from there, so that Tune's scheduler decides anew as it had decided.
    """
    import ray
    from ray import tune

    candidate = _candidate(config["candidate"])
    given: list[Trial] = ray.get(shared.given.remote(candidate.name))

    def report(trials: Sequence[Trial]) -> None:
        """Tell Tune the standing; what is won early counts a little more, so that ties are broken."""
        won = gain(problem, trials)
        best = best_trial(trials, problem.goal)
        late = 0 if best is None else [trial.assignment for trial in trials].index(best.assignment)
        tune.report(
            {"own": len(trials) - len(first), "runs": len(trials), "gain": won, "score": won - 1e-9 * late}
        )

    for count in range(len(first), len(given) + 1, batch):
        report(given[:count])
    already = len(given)

    def evaluate(plan: Assignment, searcher: str) -> Trial:
        trial: Trial | None = ray.get(shared.ask.remote(candidate.name, plan, searcher))
        if trial is None:
            raise _BudgetSpentError
        given.append(trial)
        if len(given) >= len(first) and (len(given) - len(first)) % batch == 0:
            report(given)
        return trial

    reason = "budget spent"
    if not ray.get(shared.spent.remote()):
        searcher = candidate.make(problem)
        with contextlib.suppress(_BudgetSpentError):
            run_search(searcher, evaluate, None, initial=first, already=given[:already], batch=batch)
            reason = "nothing left"
        searcher.close()
    ray.get(shared.end.remote(candidate.name, reason))


class _BudgetSpentError(Exception):
    """Ends a search from inside: no more run will be measured."""


def _scheduler(count: int, share: int) -> Any:
    """Return Tune's HyperBand with one bracket: all candidates, halved at `share`, 2, 4, ... times that."""
    from ray.tune.schedulers import HyperBandScheduler
    from ray.tune.schedulers.hyperband import _Bracket

    class Halving(HyperBandScheduler):  # type: ignore[misc]  # Ray has no types
        """HyperBand chooses the sizes of its brackets by itself, beginning with one that halves nothing."""

        def _create_bracket(self, s: int) -> Any:
            return _Bracket(
                time_attr="own",
                max_trials=count,
                init_t_attr=share,
                max_t_attr=10**9,
                eta=HALVING,
                s=math.ceil(math.log(count, HALVING)),
                stop_last_trials=False,
            )

    return Halving(time_attr="own", max_t=10**9, reduction_factor=HALVING, stop_last_trials=False)


def _reporter(on_report: Callable[[str, int, float], None]) -> Any:
    from ray.tune.progress_reporter import TrialProgressCallback

    class Reporter(TrialProgressCallback):  # type: ignore[misc]  # Ray has no types
        """Passes on what trials report, in the place of Tune's own, which prints although `verbose` is 0."""

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            on_report(_candidate(trial.config["candidate"]).name, result["runs"], result["gain"])

        def _print(self, msg: str) -> None:
            pass

        def log_result(self, trial: Any, result: dict[str, Any], error: bool = False) -> None:
            pass

    return Reporter()


def _outcome(problem: Problem, shared: Any, candidate: Candidate, *, halve: bool) -> Outcome:
    name = candidate.name
    trials = _get(shared.given.remote(name))
    return Outcome(
        candidate=candidate,
        trials=tuple(trials),
        paid=_get(shared.paid.remote(name)),
        best=best_trial(trials, problem.goal),
        gain=gain(problem, trials),
        ended=_get(shared.ended.remote(name)) or ("halved" if halve else "share used"),
    )


def _candidate(data: dict[str, Any]) -> Candidate:
    return Candidate(data["searcher"], data["seed"], PPOSettings(**data["ppo"]))


def _digest(problem: Problem, names: list[str], source: str, *, halve: bool) -> str:
    space, profile = problem.space, problem.profile
    measured = (profile.time, profile.bytes, profile.error)
    parts = (space.units, space.mask, space.baseline, measured, asdict(problem.goal), names, source, halve)
    return Digest().feed(parts).hexdigest()


def _get(reference: Any) -> Any:
    """Return the answer of the process that measures."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayActorError as error:
        raise TrialError(f"the process that measures ended: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()


@contextlib.contextmanager
def _owned(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold the folder while the body runs, with Tune's files of an earlier run removed.

    They are not what a search goes on from: Tune's snapshots lag behind, hold no state of its schedulers and
    are pickles.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "search.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise JournalError(f"{str(folder)!r} is in use by another process; wait until it ends") from None
    except OSError as error:
        raise JournalError(f"cannot use folder {str(folder)!r}: {error.strerror or error}") from error
    with lock:
        if (folder / JOURNAL).exists():
            if not resume:
                raise JournalError(
                    f"{str(folder)!r} holds a search already; resume it, or use another folder"
                )
            shutil.rmtree(folder / TUNE_FILES, ignore_errors=True)
        yield
