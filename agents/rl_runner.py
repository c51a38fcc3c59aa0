"""An RLlib EnvRunner that rolls all episodes out together.

RLlib's own runner moves every step of every episode through Python lists and connectors. Here one step of all
episodes is one batched forward, observations go straight into arrays, and each finished episode is handed
to the learner as views of them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import DictInfoToList
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from autoprec.agents.policy_network import Memory
from autoprec.agents.rl_module import MEMORY
from autoprec.envs.episodes import STATIC, Observation
from autoprec.envs.precision_env import SURROGATE_ID


class BatchedEnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]  # RLlib has no types
    """Samples whole episodes from a `PrecisionVectorEnv`, `num_envs_per_env_runner` of them at once.

    It takes complete episodes only (`batch_mode="complete_episodes"`), and calls no per-step callbacks.
    """

    def make_env(self) -> None:
        """Create the vector environment; `config.env_config` are its arguments."""
        count = self.config.num_envs_per_env_runner
        env = gym.make_vec(
            SURROGATE_ID, num_envs=count, vectorization_mode="vector_entry_point", **self.config.env_config
        )
        self.env = DictInfoToList(env)
        self.num_envs = count
        self._needs_initial_reset = True

    def _sample(self, *, num_episodes: int, explore: bool, **ignored: Any) -> list[SingleAgentEpisode]:
        env, count = self.env.unwrapped, self.num_envs
        episodes: list[SingleAgentEpisode] = []
        while len(episodes) < num_episodes:
            observation, _ = env.reset(seed=self._seed if self._needs_initial_reset else None)
            self._needs_initial_reset = False
            steps = env.length
            # What stays the same in an episode is kept once, and shown at every step.
            fixed = {
                name: np.broadcast_to(value[:, None], (count, steps + 1, *value.shape[1:]))
                for name, value in observation.items()
                if name in STATIC
            }
            seen = {
                name: np.empty((count, steps + 1, *value.shape[1:]), value.dtype)
                for name, value in observation.items()
                if name not in STATIC
            }
            memory = encode(self.module, observation)
            actions = np.empty((count, steps), np.int64)
            rewards = np.zeros((count, steps), np.float32)
            chances = np.empty((count, steps), np.float32)
            logits = np.empty((count, steps, env.single_action_space.n), np.float32)
            for step in range(steps):
                _store(seen, step, observation)
                actions[:, step], chances[:, step], logits[:, step] = choose(
                    self.module, observation, explore, memory
                )
                rewards[:, step] = env.advance(actions[:, step])
                observation = env.episodes.observe()
            _store(seen, steps, observation)
            episodes += [
                _episode({name: value[i] for name, value in (seen | fixed).items()}, actions[i], rewards[i],
                         {Columns.ACTION_LOGP: chances[i], Columns.ACTION_DIST_INPUTS: logits[i]})
                for i in range(count)
            ]  # fmt: skip
        self._done_episodes_for_metrics.extend(episodes)
        self._increase_sampled_metrics(sum(len(episode) for episode in episodes), len(episodes))
        return episodes


def encode(module: Any, observation: Observation) -> Memory:
    """Return what a policy remembers of the models in a batch of observations, for whole episodes."""
    with torch.inference_mode():
        memory: Memory = module.network.encode({name: torch.from_numpy(observation[name]) for name in STATIC})
    return memory


def choose(
    module: Any, observation: Observation, explore: bool, memory: Memory
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return actions `[B]`, their log probabilities `[B]` and the logits `[B, K]` of a policy.

    Args:
        module: The RLModule.
        observation: A batch of observations.
        explore: Sample where True, take the most likely action where False.
        memory: `encode` of any step of these episodes.
    """
    with torch.inference_mode():
        seen = {name: torch.from_numpy(value) for name, value in observation.items()}
        batch = {Columns.OBS: seen, MEMORY: memory}
        scores = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        logs = torch.log_softmax(scores, dim=-1)
        picked = torch.multinomial(logs.exp(), 1).squeeze(-1) if explore else scores.argmax(dim=-1)
        chance = logs.gather(-1, picked.unsqueeze(-1)).squeeze(-1)
        return picked.numpy(), chance.numpy(), scores.numpy()


def _store(seen: Observation, step: int, observation: Observation) -> None:
    for name in seen:
        seen[name][:, step] = observation[name]


def _episode(
    seen: Observation, actions: NDArray[Any], rewards: NDArray[Any], extra: dict[str, NDArray[Any]]
) -> SingleAgentEpisode:
    return SingleAgentEpisode(
        observations=InfiniteLookbackBuffer(seen),
        infos=[{}] * (len(rewards) + 1),
        actions=InfiniteLookbackBuffer(actions),
        rewards=InfiniteLookbackBuffer(rewards),
        terminated=True,
        extra_model_outputs={name: InfiniteLookbackBuffer(value) for name, value in extra.items()},
        len_lookback_buffer=0,
    )
