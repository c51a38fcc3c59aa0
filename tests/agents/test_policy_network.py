"""The policy network and what it is shown of the whole model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from autoprec.agents.policy_file import import_policy
from autoprec.agents.policy_network import CHARGE, WORTH, PolicyNetwork
from autoprec.agents.pretrain import pretrained_policy
from autoprec.envs.episodes import STATIC, Beliefs, Episodes
from autoprec.envs.reward import reward
from autoprec.envs.segments import SEGMENT_FEATURES, SEGMENTS
from autoprec.envs.space import Goal, SearchSpace
from autoprec.envs.surrogate import Surrogate
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.kernels.formats import FORMATS


def fitted(units: int, *, seed: int = 3) -> Surrogate:
    landscape = synthetic_landscape(seed, units, drop_noise=0.02)
    space = landscape.space
    surrogate = Surrogate(space, landscape.profile, Goal("latency", landscape.max_quality_drop))
    return surrogate.fit([landscape.evaluate(space.uniform(k), "x") for k in space.choices(0)])


def episodes_of(surrogate: Surrogate, count: int = 4) -> Episodes:
    episodes = Episodes(surrogate.space, surrogate.profile, surrogate.goal, Beliefs.of(surrogate))
    episodes.reset(surrogate.goal.max_quality_drop * np.linspace(0.3, 3, count))
    return episodes


def tensors(episodes: Episodes) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in episodes.observe().items()}


def trained(seed: int = 0) -> PolicyNetwork:
    """Return a network whose correction is not zero any more."""
    torch.manual_seed(seed)
    network = PolicyNetwork()
    for layer in (network.score[-1], network.caution):
        torch.nn.init.normal_(layer.weight, std=0.3)
    return network


def reordered(surrogate: Surrogate, order: list[int]) -> Episodes:
    """Return episodes of the same workload with its units in another order."""
    space, profile, beliefs = surrogate.space, surrogate.profile, Beliefs.of(surrogate)
    return Episodes(
        SearchSpace(tuple(space.units[u] for u in order), space.mask[order], space.baseline),
        replace(
            profile, time=profile.time[order], bytes=profile.bytes[order], features=profile.features[order]
        ),
        surrogate.goal,
        Beliefs(
            beliefs.saved_time[order],
            beliefs.saved_bytes[order],
            beliefs.damage[order],
            beliefs.spread[order],
            beliefs.root,
        ),
    )


def test_an_untrained_policy_chooses_as_the_knapsack_does() -> None:
    network, episodes = PolicyNetwork(), episodes_of(fitted(12))
    while not episodes.done:
        seen = tensors(episodes)
        allowed = seen["action_mask"] > 0
        scores = network(seen)[0].masked_fill(~allowed, -torch.inf)
        caution = float(np.e)
        balance = seen["formats"][..., WORTH] - caution * seen["formats"][..., CHARGE]
        expected = balance.masked_fill(~allowed, -torch.inf).argmax(-1)
        assert torch.equal(scores.argmax(-1), expected)
        episodes.step(expected.numpy())


def test_the_order_of_units_within_a_segment_does_not_matter() -> None:
    surrogate = fitted(2 * SEGMENTS)
    network, pairs = trained(), range(0, 2 * SEGMENTS, 2)
    first = reordered(surrogate, list(range(2 * SEGMENTS)))
    second = reordered(surrogate, [unit for start in pairs for unit in (start + 1, start)])
    third = reordered(surrogate, list(reversed(range(2 * SEGMENTS))))
    for episodes in (first, second, third):
        episodes.reset(np.array([0.01]))
    ours, theirs, others = (network.encode(tensors(episodes)) for episodes in (first, second, third))
    torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours.values, others.values, atol=1e-2)


@pytest.mark.parametrize("units", [1, 5, SEGMENTS, SEGMENTS + 1, 101])
def test_any_number_of_units_fills_the_same_space(units: int) -> None:
    episodes = episodes_of(fitted(units))
    network = trained()
    segments = episodes.observe()["segments"]
    assert segments.shape == (4, SEGMENTS, len(SEGMENT_FEATURES))
    assert (segments[0, :, 0] == (np.arange(SEGMENTS) < min(units, SEGMENTS))).all()
    pooled = 10 ** segments[0, :, SEGMENT_FEATURES.index("log_units")][: min(units, SEGMENTS)]
    assert pooled.sum() == pytest.approx(units, rel=1e-4)
    assert pooled.max() - pooled.min() < 1.01
    here = []
    while not episodes.done:
        seen = tensors(episodes)
        assert all(torch.isfinite(value).all() for value in (*network(seen), *seen.values()))
        here.append(int(seen["progress"][0, :, 0].argmax()))
        assert seen["progress"][:, :, 0].sum(-1).tolist() == [1.0] * 4
        scores = network(seen)[0].masked_fill(seen["action_mask"] == 0, -torch.inf)
        episodes.step(scores.argmax(-1).numpy())
    assert here == sorted(here)
    assert set(here) == set(range(min(units, SEGMENTS)))
    progress = episodes.observe()["progress"]
    assert (progress[:, : min(units, SEGMENTS), 1] == 1).all()
    assert not progress[:, units:].any()


def test_encoding_once_an_episode_is_encoding_at_every_step() -> None:
    network, episodes = trained(), episodes_of(fitted(9))
    memory = network.encode(tensors(episodes))
    steps = []
    while not episodes.done:
        seen = tensors(episodes)
        steps.append((seen, *network(seen, memory)))
        episodes.step(np.array([seen["action_mask"][row].argmax() for row in range(4)]))
    whole = {name: torch.cat([seen[name] for seen, _, _ in steps]) for name in steps[0][0]}
    order = torch.randperm(len(whole["unit"]), generator=torch.Generator().manual_seed(0))
    scores, summary = network({name: value[order] for name, value in whole.items()})
    torch.testing.assert_close(scores, torch.cat([s for _, s, _ in steps])[order], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(summary, torch.cat([s for _, _, s in steps])[order], rtol=1e-4, atol=1e-4)


def test_the_first_unit_is_decided_in_view_of_the_last() -> None:
    network, seen = trained(), tensors(episodes_of(fitted(20)))
    before = network(seen)[0]
    changed = seen["segments"].clone()
    changed[:, 19, SEGMENT_FEATURES.index("risk")] += 1.0
    assert (network({**seen, "segments": changed})[0] - before).abs().max() > 1e-3
    empty = seen["segments"].clone()
    empty[:, 20:, 1:] = 5.0
    torch.testing.assert_close(network({**seen, "segments": empty})[0], before)


def test_what_does_not_change_in_an_episode_does_not() -> None:
    episodes = episodes_of(fitted(6))
    first = {name: episodes.observe()[name].copy() for name in STATIC}
    for _ in range(6):
        episodes.step(np.full(4, episodes.space.baseline[0]))
        for name in STATIC:
            np.testing.assert_array_equal(episodes.observe()[name], first[name])


def test_the_vocabulary_of_formats_is_not_in_the_weights() -> None:
    """A format that is added later has a score at once, and those of the others stay."""
    network, seen = trained(), tensors(episodes_of(fitted(4)))
    before = network(seen)[0]
    state = network.state_dict()
    assert not any(len(FORMATS) in value.shape for value in state.values())
    network.traits = torch.cat([network.traits, network.traits[:1]])
    more = torch.cat([seen["formats"], seen["formats"][:, :1]], dim=1)
    mask = torch.cat([seen["action_mask"], torch.zeros(4, 1)], dim=1)
    scores = network({**seen, "formats": more, "action_mask": mask})[0]
    torch.testing.assert_close(scores[:, :-1], before)
    torch.testing.assert_close(scores[:, -1], before[:, 0])


def test_the_shipped_policy_is_better_than_an_untrained_one() -> None:
    """On workloads that it was not trained on, judged by the workload itself."""
    untrained, shipped = PolicyNetwork(), PolicyNetwork()
    shipped.load_state_dict(import_policy(pretrained_policy()))
    rng, gained = np.random.default_rng(0), []
    for seed in range(8):
        landscape = synthetic_landscape(seed, 30, time_noise=0.01, drop_noise=0.1)
        space = landscape.space
        plans = [space.uniform(k) for k in space.choices(0)]
        plans += [tuple(int(k) for k in rng.choice(space.choices(0), 30)) for _ in range(20)]
        goal = Goal("latency", landscape.max_quality_drop)
        surrogate = Surrogate(space, landscape.profile, goal)
        surrogate.fit([landscape.evaluate(plan, "x") for plan in plans])
        values = []
        for network in (untrained, shipped):
            episodes = episodes_of(surrogate, 6)
            with torch.inference_mode():
                memory = network.encode(tensors(episodes))
                while not episodes.done:
                    seen = tensors(episodes)
                    scores = network(seen, memory)[0].masked_fill(seen["action_mask"] == 0, -torch.inf)
                    episodes.step(scores.argmax(-1).numpy())
            time, drop = landscape.figures(episodes.plans)
            values.append(reward(time, drop, episodes.limits, np.zeros(6)).mean())
        gained.append(values[1] - values[0])
    assert np.mean(gained) > 0.03, gained
