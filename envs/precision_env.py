"""The Gymnasium environments: choose each unit's format in turn, then be measured.

`autoprec/Precision-v0` ends an episode in a real measured run, `autoprec/PrecisionSurrogate-v0` in a draw
from the surrogate; spaces and reward are the same. Importing this module registers both ids. Made without
arguments they play a small synthetic workload whose units allow every format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from autoprec.envs.additive import Floats
from autoprec.envs.episodes import Beliefs, Episodes, Observation, action_space, observation_space
from autoprec.envs.reward import reward
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import synthetic_landscape

MEASURED_ID = "autoprec/Precision-v0"
SURROGATE_ID = "autoprec/PrecisionSurrogate-v0"

Truth = Callable[[NDArray[np.intp]], tuple[Floats, Floats, NDArray[np.bool_]]]
"""Returns times, drops and whether they run, `[B]` each, of plans `[B, U]`."""


class _OneEpisode(gym.Env[Observation, np.int64]):
    """What both environments share: one episode at a time over the shared core."""

    metadata = {"render_modes": []}  # noqa: RUF012  (the name and type are Gymnasium's)

    def __init__(self, surrogate: Surrogate) -> None:
        self.observation_space = observation_space()
        self.action_space = action_space()
        self.surrogate = surrogate
        self._episodes = Episodes(surrogate.space, surrogate.profile, surrogate.goal, Beliefs.of(surrogate))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; `options={"limit": x}` sets its limit on the drop."""
        super().reset(seed=seed)
        limit = (options or {}).get("limit", self.surrogate.goal.max_quality_drop)
        self._episodes.reset(np.array([limit], np.float64))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give the next unit a format; the last one ends the episode with its reward.

        Raises:
            SettingError: The format is masked for the unit.
        """
        self._episodes.step(np.array([int(action)]))
        if not self._episodes.done:
            return self._observation(), 0.0, False, False, {}
        plan = tuple(int(index) for index in self._episodes.plans[0])
        value, info = self._finish(plan, self._episodes.limits)
        return self._observation(), value, True, False, {"assignment": plan, **info}

    def _finish(self, plan: Assignment, limits: Floats) -> tuple[float, dict[str, Any]]:
        raise NotImplementedError

    def _observation(self) -> Observation:
        return {name: value[0] for name, value in self._episodes.observe().items()}


class PrecisionEnv(_OneEpisode):
    """Every episode ends in a real measured run.

    Args:
        surrogate: What the agent is told of the workload; fitted to runs or as profiled.
        evaluate: Measures a plan and returns its trial; a plan that fails is a trial too.
    """

    def __init__(
        self,
        surrogate: Surrogate | None = None,
        evaluate: Callable[[Assignment], Trial] | None = None,
    ) -> None:
        if surrogate is None or evaluate is None:
            landscape = synthetic_landscape(0, 6, formats=FORMAT_NAMES, time_noise=0.01)
            goal = Goal("latency", landscape.max_quality_drop)
            surrogate = Surrogate(landscape.space, landscape.profile, goal)
            evaluate = _Replay(landscape.evaluate)
        super().__init__(surrogate)
        self._evaluate = evaluate

    def _finish(self, plan: Assignment, limits: Floats) -> tuple[float, dict[str, Any]]:
        trial = self._evaluate(plan)
        goal, profile = self.surrogate.goal, self.surrogate.profile
        cost = trial.bytes / max(profile.baseline_bytes, 1) if goal.objective == "memory" else trial.time
        memory = 0.0 if goal.max_bytes is None else trial.bytes / max(goal.max_bytes, 1)
        figures = np.nan_to_num(np.array([[cost], [trial.drop], [memory]]), nan=1.0)
        value = reward(figures[0], figures[1], limits, figures[2], trial.ok)
        return float(value[0]), {"trial": trial}


class PrecisionSurrogateEnv(_OneEpisode):
    """Every reset draws a world from the surrogate, and the episode is judged in it.

    Args:
        surrogate: Fitted to runs or as profiled.
    """

    def __init__(self, surrogate: Surrogate | None = None) -> None:
        super().__init__(surrogate or _default_surrogate())
        self._world = self.surrogate.mode()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in a new world; `options={"limit": x}` sets its limit on the drop."""
        answer = super().reset(seed=seed, options=options)
        self._world = self.surrogate.draw(self.np_random)
        return answer

    def _finish(self, plan: Assignment, limits: Floats) -> tuple[float, dict[str, Any]]:
        plans = np.array([plan], np.intp)
        value = surrogate_reward(self.surrogate, *self._world.evaluate_each(plans), plans, limits)
        return float(value[0]), {}


class PrecisionVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """`PrecisionSurrogateEnv`, many at once: all in step, each in its own world under its own limit.

    Args:
        surrogate: Fitted to runs or as profiled.
        num_envs: Number of episodes at once.
        limit_factors: Limits are drawn log-uniformly between these multiples of the goal's; a quarter of
            the episodes play the goal's own limit.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (the name and type are Gymnasium's)

    def __init__(
        self,
        surrogate: Surrogate | None = None,
        num_envs: int = 32,
        limit_factors: tuple[float, float] = (0.5, 2.0),
    ) -> None:
        super().__init__()
        self.num_envs = num_envs
        self.single_observation_space = observation_space()
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._limit_factors = limit_factors
        self.set_surrogate(surrogate or _default_surrogate())

    def set_surrogate(self, surrogate: Surrogate, truth: Truth | None = None) -> None:
        """Play another (or a newly fitted) surrogate from the next reset on.

        With `truth`, plans are judged by it and not by draws: the surrogate is then what the agent believes.
        """
        self.surrogate = surrogate
        self._truth = truth
        self.episodes = Episodes(surrogate.space, surrogate.profile, surrogate.goal, Beliefs.of(surrogate))

    @property
    def length(self) -> int:
        """Steps of an episode: the number of units."""
        return len(self.surrogate.space.units)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start all episodes; `options={"limit": x}` (a number or `[num_envs]`) sets their limits."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        rng = self.np_random
        goal = self.surrogate.goal
        given = (options or {}).get("limit")
        if given is None:
            low, high = np.log(self._limit_factors)
            # Episodes share few limits: what a policy makes of a model and a limit is encoded once for all of
            # them.
            distinct = np.exp(rng.uniform(low, high, max(8, self.num_envs // 4)))
            factors = distinct[np.arange(self.num_envs) % len(distinct)]
            factors[rng.uniform(size=self.num_envs) < 0.25] = 1.0
            given = goal.max_quality_drop * factors
        self.episodes.reset(np.broadcast_to(np.asarray(given, np.float64), (self.num_envs,)))
        self._worlds = self.surrogate.draw(rng, self.num_envs)
        return self.episodes.observe(), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observation, Floats, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Give the next unit of every episode a format; a step after the end starts new episodes."""
        going = np.zeros(self.num_envs, np.bool_)
        if self.episodes.done:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), going, going.copy(), info
        value = self.advance(np.asarray(actions, np.intp))
        return self.episodes.observe(), value, going | self.episodes.done, going, {}

    def advance(self, actions: NDArray[np.intp]) -> Floats:
        """Do what `step` does within an episode, without an observation; return the rewards `[num_envs]`."""
        self.episodes.step(actions)
        if not self.episodes.done:
            return np.zeros(self.num_envs)
        plans, limits = self.episodes.plans, self.episodes.limits
        if self._truth is not None:
            time, drop, ok = self._truth(plans)
            return surrogate_reward(self.surrogate, time, drop, plans, limits, ok)
        return surrogate_reward(self.surrogate, *self._worlds.evaluate_each(plans), plans, limits)


def surrogate_reward(
    surrogate: Surrogate,
    time: Floats,
    drop: Floats,
    plans: NDArray[np.intp],
    limits: Floats,
    ok: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return the rewards `[B]` of plans `[B, U]` whose times and drops `[B]` a draw, or the truth, gave.

    `ok` says which plans really run; without it the surrogate judges that.
    """
    goal = surrogate.goal
    held = surrogate.bytes(plans)
    cost = held / max(surrogate.profile.baseline_bytes, 1) if goal.objective == "memory" else time
    memory = np.zeros(len(plans)) if goal.max_bytes is None else held / max(goal.max_bytes, 1)
    # A suspected format is no proven one: suspicion of one half or more counts as failure.
    return reward(cost, drop, limits, memory, surrogate.ok_probability(plans) > 0.5 if ok is None else ok)


class _Replay:
    """Lets a landscape stand for measuring, in a form that pickles."""

    def __init__(self, evaluate: Callable[[Assignment, str], Trial]) -> None:
        self._evaluate = evaluate

    def __call__(self, assignment: Assignment) -> Trial:
        return self._evaluate(assignment, "env")


def _default_surrogate() -> Surrogate:
    landscape = synthetic_landscape(0, 6, formats=FORMAT_NAMES)
    return Surrogate(landscape.space, landscape.profile, Goal("latency", landscape.max_quality_drop))


gym.register(id=MEASURED_ID, entry_point="autoprec.envs.precision_env:PrecisionEnv", nondeterministic=True)
gym.register(
    id=SURROGATE_ID,
    entry_point="autoprec.envs.precision_env:PrecisionSurrogateEnv",
    vector_entry_point="autoprec.envs.precision_env:PrecisionVectorEnv",
)
