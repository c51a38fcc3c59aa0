"""The RLlib agent: it learns, leaves the process as it was, and its policy travels as data."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.rllib.core.columns import Columns

from autoprec.agents.policy_file import Policy, export_policy, import_policy
from autoprec.agents.portfolio import Portfolio
from autoprec.agents.ppo_settings import PPOSettings
from autoprec.agents.pretrain import pretrain, recipe
from autoprec.agents.rl import RLSearcher
from autoprec.agents.rl_runner import BatchedEnvRunner, choose, encode
from autoprec.agents.rl_trainer import Trainer, ppo_config
from autoprec.agents.searcher import Problem
from autoprec.agents.training_landscapes import DISTRIBUTION, training_world
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
    memory = encode(trainer.module, seen)
    actions, chances, scores = choose(trainer.module, seen, explore=True, memory=memory)
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
            batch = {Columns.OBS: {key: torch.tensor(value[step][None]) for key, value in seen.items()}}
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
    learnt = searcher.policy()
    searcher.close()
    assert learnt is not None
    assert learnt.meta["training"] == {"from": "shipped", "iterations": 1}
    stored = Policy(json.loads(json.dumps(dict(learnt.meta))), learnt.weights, "policy 7 of the store")

    settings = PPOSettings(first_iterations=0, iterations=0)
    other = RLSearcher(replace(problem, policy=stored), 5, settings=settings)
    assert len(other.propose(2)) == 2
    again = other.policy()
    assert again is not None
    assert again.meta["training"] == {"from": "policy 7 of the store", "iterations": 0}
    for name, value in import_policy(learnt).items():
        torch.testing.assert_close(import_policy(again)[name], value, rtol=0, atol=0)


def test_a_search_goes_on_untrained_where_its_policy_cannot_be_used(
    landscape: SyntheticLandscape, surrogate: Surrogate, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Policy({"schema": "autoprec.policy/9"}, b"")
    problem = Problem(landscape.space, landscape.profile, surrogate.goal, bad)
    searcher = RLSearcher(problem, 0, settings=PPOSettings(first_iterations=0, iterations=0))
    assert len(searcher.propose(2)) == 2
    learnt = searcher.policy()
    assert learnt is not None
    assert learnt.meta["training"]["from"] == "untrained"
    (warning,) = caplog.messages
    assert warning.startswith("rl starts from an untrained policy: the policy cannot be used: its schema is")
    assert "\n" not in warning


def test_the_portfolio_hands_its_members_the_policy_and_hands_out_what_they_learnt(
    landscape: SyntheticLandscape, surrogate: Surrogate
) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    start = Policy(*_parts(export_policy(trainer.state(), {})), origin="here")
    searcher = Portfolio(Problem(landscape.space, landscape.profile, surrogate.goal, start), 0, ("rl",))
    assert searcher.policy() is None
    searcher.propose(1)
    learnt = searcher.policy()
    searcher.close()
    assert learnt is not None
    assert learnt.meta["training"]["from"] == "here"


def _parts(policy: Policy) -> tuple[Mapping[str, Any], bytes]:
    return policy.meta, policy.weights


def test_training_is_interrupted_and_gone_on_with() -> None:
    kept: list[Policy] = []

    def stop(done: int, reward: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(5, 3, progress=stop, keep=kept.append)
    (half,) = kept
    assert half.meta["training"]["iterations"] == 2
    seen: list[int] = []
    whole = pretrain(5, 3, start=half, progress=lambda done, reward: seen.append(done))
    assert seen == [3]
    assert whole.meta["training"].items() >= {"iterations": 3, **recipe(5, ())}.items()
    before, after = import_policy(half), import_policy(whole)
    assert any(not torch.equal(before[name], value) for name, value in after.items())


def test_the_workloads_of_training_are_many_and_reproducible() -> None:
    worlds = [training_world(1, iteration) for iteration in range(30)]
    goals = [world.surrogate.goal for world in worlds]
    assert {goal.objective for goal in goals} == set(DISTRIBUTION["objective"])
    assert any(goal.max_bytes for goal in goals)
    assert any(world.truth for world in worlds)
    assert any(world.truth is None for world in worlds)
    sizes = [len(world.surrogate.space.units) for world in worlds]
    assert min(sizes) < 12
    assert max(sizes) > 80
    again = training_world(1, 4).surrogate
    np.testing.assert_array_equal(again.damage_table, worlds[4].surrogate.damage_table)
    assert again.goal == goals[4]


def test_recorded_landscapes_are_trained_on() -> None:
    landscape = synthetic_landscape(0, 4, formats=("fp32", "bf16", "int8_dynamic")).record()
    worlds = [training_world(2, iteration, [landscape]) for iteration in range(12)]
    recorded = [world for world in worlds if world.surrogate.space is landscape.space]
    assert 2 <= len(recorded) <= 10
    truth = next(world.truth for world in recorded if world.truth)
    trial = landscape.trials[7]
    time, drop, ok = truth(np.array([trial.assignment] * 2))
    assert (time[0], drop[1], ok.tolist()) == (trial.time, trial.drop, [True, True])


def test_a_policy_is_good_for_other_models(surrogate: Surrogate) -> None:
    trainer = Trainer(0, surrogate, LIMITS)
    trainer.train(surrogate, 2)
    other = synthetic_landscape(9, 5, formats=("fp32", "fp16", "fp8_e4m3"))
    elsewhere = Surrogate(other.space, other.profile, Goal("memory", 0.5))
    plans = trainer.play(elsewhere, np.full(8, 0.5), np.zeros(8, bool))
    assert all(other.space.feasible(plan) for plan in plans.tolist())


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
