"""Stored policies: mapped to this version by name, or refused with the reason in one line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import safetensors.torch
import torch

from autoprec.agents.policy_choice import DEFAULT, starting_policy
from autoprec.agents.policy_file import Policy, PolicyError, export_policy, import_policy, refusal
from autoprec.agents.policy_network import INPUTS, PolicyNetwork
from autoprec.agents.pretrain import pretrained_policy, read_policy, write_policy
from autoprec.store.store import Store


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return PolicyNetwork().state_dict()


@pytest.fixture
def policy(state: dict[str, torch.Tensor]) -> Policy:
    return export_policy(state, {"iterations": 3})


def changed(policy: Policy, name: str, value: torch.Tensor) -> Policy:
    weights = safetensors.torch.load(policy.weights)
    return Policy(policy.meta, safetensors.torch.save({**weights, name: value.contiguous()}))


def reason(policy: Policy) -> str:
    with pytest.raises(PolicyError) as caught:
        import_policy(policy)
    assert "\n" not in str(caught.value)
    assert "autoprec policy train" in str(caught.value)
    return str(caught.value)


def test_a_policy_comes_back(policy: Policy, state: dict[str, torch.Tensor]) -> None:
    meta = json.loads(json.dumps(dict(policy.meta)))
    found = import_policy(Policy(meta, policy.weights))
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) for name, value in state.items())
    PolicyNetwork().load_state_dict(found)


@pytest.mark.parametrize(("weight", "key"), INPUTS.items())
def test_columns_are_found_by_name_and_new_ones_weigh_nothing(
    policy: Policy, state: dict[str, torch.Tensor], weight: str, key: str
) -> None:
    names = list(policy.meta[key])
    kept = [index for index in reversed(range(len(names))) if index != 1]
    old: Policy = Policy({**policy.meta, key: [names[index] for index in kept]}, policy.weights)
    for name in (name for name, columns in INPUTS.items() if columns == key):
        old = changed(old, name, state[name][:, kept])
    found = import_policy(old)[weight]
    assert not found[:, 1].any()
    torch.testing.assert_close(found[:, kept], state[weight][:, kept], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"schema": "autoprec.policy/1"}, "its schema is 'autoprec.policy/1', and this version reads"),
        ({"network": {"hidden": 8}}, "its network is {'hidden': 8}, and this version's {'hidden': 64"),
        ({"network": None}, "its network is None"),
        ({"unit_features": ["depth", "colour"]}, "it reads 'colour' among its unit_features, which"),
        ({"goal_features": "root"}, "its goal_features are 'root', not a list of distinct names"),
        ({"goal_features": ["root", "root"]}, "not a list of distinct names"),
        ({"format_traits": [["bits"]]}, r"it reads ['bits'] among its format_traits"),
    ],
    ids=str,
)
def test_what_this_version_does_not_have_is_refused(policy: Policy, meta: Any, message: str) -> None:
    odd = Policy({**policy.meta, **meta}, policy.weights)
    assert message in (refusal(odd.meta) or "")
    assert message in reason(odd)


def test_an_empty_description_is_refused(policy: Policy) -> None:
    assert "its schema is None" in reason(Policy({}, policy.weights))


def test_damaged_weights_are_refused(policy: Policy, state: dict[str, torch.Tensor]) -> None:
    for bad in (b"", b"\x80\x04pickle", policy.weights[:-5], policy.weights[:100]):
        assert "weights cannot be read" in reason(Policy(policy.meta, bad))
    nan = state["query.weight"].clone()
    nan[3, 3] = torch.nan
    assert "query.weight hold NaN or infinity" in reason(changed(policy, "query.weight", nan))
    wrong = reason(changed(policy, "query.weight", torch.zeros(64, 63)))
    assert re.search(r"query.weight are torch.float32 \(64, 63\), not torch.float32 \(64, 64\)", wrong)
    half = state["query.weight"].half()
    assert "torch.float16" in reason(changed(policy, "query.weight", half))
    wide = torch.zeros(64, len(policy.meta["goal_features"]) + 1)
    assert "goal_layer.weight are" in reason(changed(policy, "goal_layer.weight", wide))
    assert "another network (extra)" in reason(changed(policy, "extra", torch.zeros(1)))


def test_policies_lie_in_two_files(policy: Policy, tmp_path: Any) -> None:
    path = tmp_path / "new" / "policy.json"
    write_policy(path, policy)
    found = read_policy(path)
    assert (found.meta, found.weights) == (policy.meta, policy.weights)
    path.write_text("[1]")
    with pytest.raises(PolicyError, match="no JSON object"):
        read_policy(path)
    path.write_text('{"schema"')
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(path)
    path.with_suffix(".safetensors").unlink()
    path.write_text("{}")
    with pytest.raises(PolicyError, match=r"policy.json' cannot be read: .*No such file"):
        read_policy(path)
    with pytest.raises(PolicyError, match="cannot be written"):
        write_policy(path / "under" / "a" / "file.json", policy)


def test_the_shipped_policy_can_be_used_and_says_how_it_was_made() -> None:
    shipped = pretrained_policy()
    import_policy(shipped)
    training = shipped.meta["training"]
    assert training["iterations"] > 0
    assert {"seed", "distribution", "versions", "curve"} <= training.keys()
    assert len(shipped.weights) < 400_000


def test_a_search_starts_from_the_newest_policy_that_can_be_used(policy: Policy) -> None:
    notes: list[str] = []
    with Store.open("sqlite://") as store:
        shipped = starting_policy(store, notes.append)
        assert shipped is not None
        assert shipped.origin == "shipped"
        store.save_policy("job:1", policy.meta, policy.weights)
        assert starting_policy(store, notes.append) == shipped
        number = store.save_policy(DEFAULT, policy.meta, policy.weights)
        found = starting_policy(store, notes.append)
        assert found is not None
        assert found.weights == policy.weights
        assert found.origin == f"policy {number} of the store"
        assert notes == []
        bad = torch.full((64, 64), torch.nan)
        store.save_policy(DEFAULT, policy.meta, changed(policy, "query.weight", bad).weights)
        store.save_policy(DEFAULT, {**policy.meta, "schema": "autoprec.policy/9"}, policy.weights)
        again = starting_policy(store, notes.append)
        assert again is not None
        assert again.origin == found.origin
        assert ["autoprec.policy/9" in note or "NaN" in note for note in notes] == [True, True]
        assert all("is passed over" in note for note in notes)
