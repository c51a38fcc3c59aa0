"""The Gymnasium environments: the API's own checks, twins, pickling, masks, and one reward for both."""

from __future__ import annotations

import itertools
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from autoprec.envs.precision_env import (
    MEASURED_ID,
    SURROGATE_ID,
    PrecisionEnv,
    PrecisionSurrogateEnv,
    PrecisionVectorEnv,
)
from autoprec.envs.reward import FAILED, reward
from autoprec.envs.space import FORMAT_NAMES, Assignment, Goal, Trial
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape
from autoprec.errors import SettingError

IDS = (MEASURED_ID, SURROGATE_ID)


@pytest.fixture
def landscape() -> SyntheticLandscape:
    return synthetic_landscape(1, 7, time_noise=0.005, drop_noise=0.05)


@pytest.fixture
def surrogate(landscape: SyntheticLandscape) -> Surrogate:
    space = landscape.space
    surrogate = Surrogate(space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    return surrogate.fit([landscape.evaluate(space.uniform(k), "x") for k in space.choices(0)])


def play(env: gym.Env, seed: int) -> list[tuple]:
    """Play two episodes with masked random actions; return everything seen."""
    rng = np.random.default_rng(0)
    seen = []
    observation, _ = env.reset(seed=seed)
    for _ in range(2):
        ended = False
        while not ended:
            action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            observation, value, ended, truncated, _ = env.step(np.int64(action))
            assert observation in env.observation_space
            assert not truncated
            seen.append((observation, value, ended))
        observation, _ = env.reset()
    return seen


@pytest.mark.parametrize("name", IDS)
def test_the_registered_ids_pass_gymnasiums_own_check(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(name).unwrapped, skip_render_check=True)
    assert gym.spec(name).nondeterministic == (name == MEASURED_ID)


def test_spaces_do_not_depend_on_the_model(surrogate: Surrogate) -> None:
    spaces = [gym.make(name).unwrapped for name in IDS] + [PrecisionSurrogateEnv(surrogate)]
    assert len({str(env.observation_space) for env in spaces}) == 1
    assert all(env.action_space == gym.spaces.Discrete(len(FORMAT_NAMES)) for env in spaces)


def test_twins_with_one_seed_see_the_same(surrogate: Surrogate) -> None:
    first, second, other = (play(PrecisionSurrogateEnv(surrogate), seed) for seed in (3, 3, 4))
    for ours, theirs in zip(first, second, strict=True):
        for key in ours[0]:
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])
        assert ours[1:] == theirs[1:]
    assert [step[1] for step in first] != [step[1] for step in other]


@pytest.mark.parametrize("name", IDS)
def test_a_pickled_environment_goes_on_as_the_original(name: str) -> None:
    env = gym.make(name).unwrapped
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    for ours, theirs in zip(play(env, 5), play(copy, 5), strict=True):
        assert ours[1:] == theirs[1:]


def test_a_masked_action_says_what_was_expected(surrogate: Surrogate) -> None:
    env = PrecisionSurrogateEnv(surrogate)
    env.reset(seed=0)
    masked = FORMAT_NAMES.index("fp16")
    message = rf"action {masked} \(fp16\) is masked for unit 'unit0'; expected one of 0 \(fp32\), 1 \(bf16\)"
    with pytest.raises(SettingError, match=message):
        env.step(np.int64(masked))
    with pytest.raises(SettingError, match=r"action 99 \(no format\) is masked"):
        env.step(np.int64(99))


def test_the_measured_environment_ends_in_one_measured_run(
    landscape: SyntheticLandscape, surrogate: Surrogate
) -> None:
    asked: list[Assignment] = []

    def evaluate(assignment: Assignment) -> Trial:
        asked.append(assignment)
        return landscape.evaluate(assignment, "env")

    env = PrecisionEnv(surrogate, evaluate)
    env.reset(seed=0)
    plan = tuple(int(landscape.space.choices(unit)[unit % 3]) for unit in range(7))
    for index in plan:
        _, value, ended, _, info = env.step(np.int64(index))
    assert ended
    assert asked == [plan]
    assert info["trial"] == landscape.evaluate(plan, "env")
    trial = info["trial"]
    limit = np.array([landscape.max_quality_drop])
    expected = reward(np.array([trial.time]), np.array([trial.drop]), limit, np.array([0.0]))
    assert value == pytest.approx(float(expected[0]))


def test_a_failed_run_is_the_worst_reward(surrogate: Surrogate) -> None:
    def evaluate(assignment: Assignment) -> Trial:
        return Trial(assignment, False, np.nan, np.nan, np.nan, "env")

    env = PrecisionEnv(surrogate, evaluate)
    observation, _ = env.reset(seed=0)
    ended = False
    while not ended:
        action = np.flatnonzero(observation["action_mask"])[0]
        observation, value, ended, _, _ = env.step(action)
    assert value == FAILED


def test_rewards_rank_plans_as_a_user_would() -> None:
    one, zero = np.ones(1), np.zeros(1)
    limit = 0.01 * one
    fast = reward(0.5 * one, 0.009 * one, limit, zero)
    slow = reward(0.9 * one, zero, limit, zero)
    over = reward(0.5 * one, 0.011 * one, limit, zero)
    far_over = reward(0.5 * one, 0.1 * one, limit, zero)
    too_big = reward(0.5 * one, zero, limit, 1.2 * one)
    baseline = reward(one, zero, limit, zero)
    failed = reward(np.array([np.nan]), np.array([np.nan]), limit, zero, ok=False)
    assert fast > slow > baseline == 0
    assert slow > over > far_over > failed
    assert fast > too_big
    assert reward(one, zero, zero, zero) == 0
    assert np.isfinite(reward(one, one, zero, zero))


def test_the_vector_environment_plays_the_same_game(surrogate: Surrogate) -> None:
    """With the worlds equal to the mode, each of its episodes is what the single environment would see."""
    vector = PrecisionVectorEnv(surrogate, num_envs=3, limit_factors=(0.5, 2.0))
    limits = np.array([0.005, 0.01, 0.02])
    observation, _ = vector.reset(seed=0, options={"limit": limits})
    singles = [PrecisionSurrogateEnv(surrogate) for _ in limits]
    views = [
        env.reset(seed=0, options={"limit": limit})[0] for env, limit in zip(singles, limits, strict=True)
    ]
    rng = np.random.default_rng(0)
    for step in range(vector.length):
        for row, view in enumerate(views):
            for key in view:
                np.testing.assert_array_equal(observation[key][row], view[key])
        actions = rng.choice(surrogate.space.choices(step), 3)
        observation, _, ended, _, _ = vector.step(actions)
        views = [env.step(action)[0] for env, action in zip(singles, actions, strict=True)]
    assert ended.all()


def test_the_vector_environment_keeps_gymnasiums_vector_contract() -> None:
    env = gym.make_vec(SURROGATE_ID, num_envs=4, vectorization_mode="vector_entry_point")
    observation, info = env.reset(seed=2)
    assert observation in env.observation_space
    assert info == {}
    length = env.unwrapped.length
    rng = np.random.default_rng(0)
    for step in range(2 * length + 2):
        observation, value, ended, truncated, _ = env.step(rng.integers(0, len(FORMAT_NAMES), 4))
        assert observation in env.observation_space
        assert value.shape == ended.shape == truncated.shape == (4,)
        # The step after an end starts anew (next-step autoreset) and gives no reward.
        assert ended.all() == ((step + 1) % (length + 1) == length)
        if not ended.all():
            assert not value.any()
    env.close()


def test_vector_twins_with_one_seed_see_the_same(surrogate: Surrogate) -> None:
    def rewards(seed: int) -> np.ndarray:
        env = PrecisionVectorEnv(surrogate, num_envs=8)
        observation, _ = env.reset(seed=seed)
        for _ in range(env.length):
            observation, value, *_ = env.step(observation["action_mask"].argmax(axis=1))
        return value

    np.testing.assert_array_equal(rewards(1), rewards(1))
    assert (rewards(1) != rewards(2)).any()


def test_worlds_and_limits_differ_between_episodes(surrogate: Surrogate) -> None:
    env = PrecisionVectorEnv(surrogate, num_envs=64, limit_factors=(0.25, 4.0))
    env.reset(seed=0)
    limits = env.episodes.limits / surrogate.goal.max_quality_drop
    assert limits.min() >= 0.25
    assert limits.max() <= 4.0
    assert 0.1 < np.mean(limits == 1.0) < 0.45
    assert len(np.unique(limits)) > 12


def test_plans_are_judged_by_the_truth_where_it_is_given(
    landscape: SyntheticLandscape, surrogate: Surrogate
) -> None:
    def truth(plans: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (*landscape.figures(plans), np.arange(len(plans)) != 1)

    env = PrecisionVectorEnv(surrogate, num_envs=3)
    env.set_surrogate(surrogate, truth)
    env.reset(seed=0, options={"limit": 0.01})
    for step in range(env.length):
        _, values, *_ = env.step(np.array(surrogate.space.choices(step)[:3]))
    time, drop, _ = truth(env.episodes.plans)
    expected = reward(time, drop, np.full(3, 0.01), np.zeros(3))
    assert values.tolist() == [pytest.approx(expected[0]), FAILED, pytest.approx(expected[2])]


def test_the_agent_is_told_what_its_choices_cost(surrogate: Surrogate) -> None:
    env = PrecisionSurrogateEnv(surrogate)
    observation, _ = env.reset(seed=0)
    spent = [float(observation["totals"][0])]
    cheapest = FORMAT_NAMES.index("int4_weight_only")
    for _ in range(7):
        observation, *_ = env.step(np.int64(cheapest))
        spent.append(float(observation["totals"][0]))
    assert spent[0] == 0
    assert all(later > earlier for earlier, later in itertools.pairwise(spent))


def test_a_memory_limit_is_seen_and_enforced(landscape: SyntheticLandscape) -> None:
    half = landscape.profile.baseline_bytes // 2
    goal = Goal("memory", 1.0, max_bytes=half)
    uniform = [landscape.space.uniform(k) for k in landscape.space.choices(0)]
    surrogate = Surrogate(landscape.space, landscape.profile, goal)
    env = PrecisionSurrogateEnv(surrogate.fit([landscape.evaluate(plan, "x") for plan in uniform]))
    values = {}
    for name in ("fp32", "int8_dynamic"):
        observation, _ = env.reset(seed=0)
        assert observation["totals"][10] == 1.0
        for _ in range(7):
            observation, values[name], *_ = env.step(np.int64(FORMAT_NAMES.index(name)))
    assert values["fp32"] < 0 < values["int8_dynamic"]
