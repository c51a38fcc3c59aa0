"""The RLlib agent: it learns, leaves the process as it was, and its policy travels as data."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import ray
import torch
from ray.rllib.core.columns import Columns

from autoprec.agents.policy_file import PolicyError, compatible, export_policy, import_policy
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.pretrain import pretrained_policy
from autoprec.agents.rl import RLSearcher
from autoprec.agents.rl_runner import BatchedEnvRunner, choose
from autoprec.agents.rl_trainer import Trainer, ppo_config
from autoprec.agents.searcher import Problem
from autoprec.envs.episodes import Beliefs, Episodes
from autoprec.envs.space import Goal
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape

LIMITS = (0.5, 2.0)


@pytest.fixture(scope="module")
def landscape() -> SyntheticLandscape:
    return synthetic_landscape(1, 12, time_noise=0.005, drop_noise=0.02)


@pytest.fixture(scope="module")
def surrogate(landscape: SyntheticLandscape) -> Surrogate:
    space = landscape.space
    surrogate = Surrogate(space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    rng = np.random.default_rng(0)
    plans = [space.uniform(k) for k in space.choices(0)]
    plans += [tuple(int(k) for k in rng.choice(space.choices(0), 12)) for _ in range(20)]
    return surrogate.fit([landscape.evaluate(plan, "x") for plan in plans])


def observation(surrogate: Surrogate, count: int = 5) -> dict[str, np.ndarray]:
    episodes = Episodes(surrogate.space, surrogate.profile, surrogate.goal, Beliefs.of(surrogate))
    episodes.reset(surrogate.goal.max_quality_drop * np.linspace(0.2, 5, count))
    return episodes.observe()


def test_training_raises_the_reward(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    rewards = trainer.train(surrogate, 20)
    assert len(rewards) == 20
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2


def test_masked_formats_are_never_played(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    seen = observation(surrogate, 500)
    actions, chances, scores = choose(trainer.module, seen, explore=True)
    assert seen["action_mask"][np.arange(500), actions].all()
    assert np.isfinite(chances).all()
    assert (scores[seen["action_mask"] == 0] < -1e30).all()
    plans = trainer.play(surrogate, np.full(64, 0.01), np.arange(64) == 0)
    assert all(surrogate.space.feasible(plan) for plan in plans.tolist())


def test_the_policy_heeds_the_limit(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    limits = np.array([1e-5, 10.0])
    strict, loose = trainer.play(surrogate, limits, np.array([True, True]))
    rows = np.arange(len(strict))
    damage = surrogate.damage_table
    assert damage[rows, strict].sum() < damage[rows, loose].sum()
    assert surrogate.time_table[rows, loose].sum() < surrogate.time_table[rows, strict].sum()


def test_nothing_process_wide_is_left_behind(surrogate: Surrogate) -> None:
    threads = torch.get_num_threads()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), np.random.random(), torch.rand(1).item())
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    trainer = Trainer(0, surrogate, LIMITS)
    trainer.train(surrogate, 1)
    trainer.play(surrogate, np.full(4, 0.01), np.zeros(4, bool))
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert not ray.is_initialized()


def test_random_numbers_drawn_in_between_change_nothing(surrogate: Surrogate) -> None:
    states = []
    for draws in (0, 5):
        trainer = Trainer(3, surrogate, LIMITS)
        trainer.train(surrogate, 1)
        torch.rand(draws)
        np.random.random(draws)
        trainer.train(surrogate, 1)
        states.append(trainer.state())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=0)


def test_the_runner_hands_out_whole_episodes_as_rllib_means_them(surrogate: Surrogate) -> None:
    config = ppo_config(0, len(surrogate.space.units), LIMITS, PPOSettings(hidden=16))
    runner = BatchedEnvRunner(config=config)
    runner.env.unwrapped.set_surrogate(surrogate)
    episodes = runner.sample()
    assert len(episodes) == config.num_envs_per_env_runner
    for episode in episodes:
        episode.validate()
        assert episode.is_done
        assert episode.is_numpy
        assert len(episode) == len(surrogate.space.units)
        rewards = episode.get_rewards()
        assert not rewards[:-1].any()
        seen, actions = episode.get_observations(), episode.get_actions()
        for step in range(len(episode)):
            batch = {Columns.OBS: {key: torch.from_numpy(value[step][None]) for key, value in seen.items()}}
            logits = runner.module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
            chance = torch.log_softmax(logits, -1)[0, actions[step]].item()
            assert chance == pytest.approx(
                episode.get_extra_model_outputs(Columns.ACTION_LOGP)[step], abs=1e-4
            )


def test_a_policy_travels_as_data(landscape: SyntheticLandscape, surrogate: Surrogate) -> None:
    problem = Problem(landscape.space, landscape.profile, surrogate.goal)
    searcher = RLSearcher(problem, 0, settings=PPOSettings(first_iterations=1, iterations=1))
    assert searcher.policy() is None
    searcher.propose(2)
    exported = searcher.policy()
    searcher.close()
    assert exported is not None
    meta, weights = exported
    meta = json.loads(json.dumps(meta))
    assert meta["training"] == {"iterations": 1}
    assert compatible(meta)
    assert len(weights) < 200_000

    other = RLSearcher(
        problem, 5, settings=PPOSettings(first_iterations=0, iterations=0), policy=(meta, weights)
    )
    assert len(other.propose(2)) == 2
    again = other.policy()
    assert again is not None
    assert import_policy(*again).keys() == import_policy(meta, weights).keys()
    for name, value in import_policy(meta, weights).items():
        torch.testing.assert_close(import_policy(*again)[name], value, rtol=0, atol=0)


def test_a_policy_is_good_for_other_models(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    trainer.train(surrogate, 2)
    other = synthetic_landscape(9, 5, formats=("fp32", "fp16", "fp8_e4m3"))
    elsewhere = Surrogate(other.space, other.profile, Goal("memory", 0.5))
    plans = trainer.play(elsewhere, np.full(8, 0.5), np.zeros(8, bool))
    assert all(other.space.feasible(plan) for plan in plans.tolist())


def test_a_policy_that_does_not_fit_is_refused(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    meta, weights = export_policy(trainer.state(), {})
    assert not compatible({**meta, "unit_features": ["colour"]})
    with pytest.raises(PolicyError, match=r"the policy's schema is 'autoprec.policy/9'"):
        import_policy({**meta, "schema": "autoprec.policy/9"}, weights)
    with pytest.raises(PolicyError, match="cannot be read"):
        import_policy(meta, weights[:-5])
    with pytest.raises(PolicyError, match="cannot be read"):
        import_policy(meta, b"\x80\x04pickle")
    narrow = Trainer(0, surrogate, LIMITS, PPOSettings(hidden=8))
    with pytest.raises(PolicyError, match="another network"):
        narrow.load(import_policy(meta, weights))


def test_the_shipped_policy_is_better_than_an_untrained_one(surrogate: Surrogate) -> None:
    shipped = pretrained_policy()
    assert shipped is not None
    trainer = Trainer(0, surrogate, LIMITS)
    before = trainer.train(surrogate, 1)[0]
    trainer.load(import_policy(*shipped))
    assert trainer.train(surrogate, 1)[0] > before + 0.2


@pytest.mark.slow
def test_rllibs_own_algorithm_takes_the_same_settings() -> None:
    """`ppo_config` stays a plain RLlib configuration: with actors, Tune or checkpoints where wanted."""
    algorithm = ppo_config(0, 6, LIMITS, PPOSettings(hidden=16)).build_algo()
    try:
        result = algorithm.train()
    finally:
        algorithm.stop()
        ray.shutdown()
    assert np.isfinite(result["env_runners"]["episode_return_mean"])
