"""Training the policy with RLlib's PPO on a surrogate."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.rl_module import PrecisionModule
from autoprec.agents.rl_runner import BatchedEnvRunner, choose, encode
from autoprec.agents.training_state import TrainingState
from autoprec.envs.additive import Floats, Ints
from autoprec.envs.episodes import Beliefs, Episodes
from autoprec.envs.precision_env import Truth
from autoprec.envs.surrogate import Surrogate

DEFAULTS = PPOSettings()


class Trainer:
    """RLlib's PPO learner and an environment runner, in this process, reused over the rounds of a search.

    This is the loop of RLlib's `PPO.training_step` without its actors: no Ray cluster is started, so no
    background process disturbs the timing of measured runs, and a search starts seconds sooner.

    What it does to the process is undone after every call (`TrainingState`): measured runs in between must
    not notice it, nor it them.

    Args:
        seed: Seeds network, environments and sampling.
        surrogate: The first surrogate; the number of its units sizes the batches.
        limit_factors: Limits on the drop that episodes play under, as multiples of the goal's.
        settings: How to train.
    """

    def __init__(
        self,
        seed: int,
        surrogate: Surrogate,
        limit_factors: tuple[float, float],
        settings: PPOSettings = DEFAULTS,
    ) -> None:
        # RLlib warns at every start that its present API is the present one, and of its own deprecated calls.
        for name in ("ray", "ray.rllib"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._process = TrainingState(seed)
        with self._process:
            self._config = ppo_config(seed, len(surrogate.space.units), limit_factors, settings)
            self._runner = BatchedEnvRunner(config=self._config)
            self._learner = self._config.build_learner(spaces=self._runner.get_spaces())
        # In one process the policy that plays can be the one that learns: nothing to synchronise.
        self.module: PrecisionModule = self._learner.module[DEFAULT_MODULE_ID]
        self._runner.module = self.module
        self._steps = 0

    def train(
        self,
        surrogate: Surrogate,
        iterations: int,
        truth: Truth | None = None,
    ) -> list[float]:
        """Train on draws of a surrogate; return the mean reward of each iteration that was done.

        With `truth`, plans are judged by it and not by draws.
        """
        self._runner.env.unwrapped.set_surrogate(surrogate, truth)
        rewards: list[float] = []
        with self._process:
            for _ in range(iterations):
                episodes = self._runner.sample()
                rewards.append(float(np.mean([episode.get_return() for episode in episodes])))
                self._steps += sum(len(episode) for episode in episodes)
                self._learner.update(
                    episodes=episodes,
                    timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: self._steps},
                    num_epochs=self._config.num_epochs,
                    minibatch_size=self._config.minibatch_size,
                    shuffle_batch_per_epoch=self._config.shuffle_batch_per_epoch,
                )
        return rewards

    def play(self, surrogate: Surrogate, limits: Floats, greedy: NDArray[np.bool_]) -> Ints:
        """Return the plans `[B, U]` that the policy plays under limits `[B]`.

        `greedy` `[B]` says which take the most likely format everywhere; the others sample.
        """
        episodes = Episodes(surrogate.space, surrogate.profile, surrogate.goal, Beliefs.of(surrogate))
        episodes.reset(limits)
        with self._process:
            memory = encode(self.module, episodes.observe())
            while not episodes.done:
                picked, _, scores = choose(self.module, episodes.observe(), explore=True, memory=memory)
                episodes.step(np.where(greedy, scores.argmax(axis=1), picked))
        return episodes.plans

    def state(self) -> dict[str, torch.Tensor]:
        """Return the weights."""
        return {name: value.detach().clone() for name, value in self.module.network.state_dict().items()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over weights, as `import_policy` returned them."""
        self.module.network.load_state_dict(state)


def ppo_config(
    seed: int, units: int, limit_factors: tuple[float, float], settings: PPOSettings = DEFAULTS
) -> PPOConfig:
    """Return RLlib's configuration: whole episodes, a reward at their end, everything in this process."""
    episodes = min(64, max(4, settings.batch_steps // units))
    batch = episodes * units
    return (
        PPOConfig()
        .environment(env="autoprec/PrecisionSurrogate-v0", env_config={"limit_factors": limit_factors})
        .env_runners(
            env_runner_cls=BatchedEnvRunner,
            num_env_runners=0,
            num_envs_per_env_runner=episodes,
            batch_mode="complete_episodes",
        )
        .learners(num_learners=0)
        .training(
            lr=settings.lr,
            gamma=1.0,
            lambda_=1.0,
            train_batch_size_per_learner=batch,
            minibatch_size=max(128, batch // 4),
            num_epochs=settings.epochs,
            entropy_coeff=settings.entropy,
            vf_loss_coeff=0.5,
            vf_clip_param=1e9,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=PrecisionModule, model_config={"hidden": settings.hidden}
            )
        )
        .debugging(seed=seed, log_level="ERROR")
    )
