"""`autoprec policy`, and jobs that start from a stored policy and keep what they learnt."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import autoprec
from autoprec.agents.policy_file import export_policy
from autoprec.agents.policy_network import PolicyNetwork
from autoprec.agents.pretrain import read_policy
from autoprec.cli import app
from autoprec.envs.landscape import LandscapeError
from autoprec.envs.synthetic import synthetic_landscape
from autoprec.errors import SettingError, StoreError
from autoprec.progress import Progress
from autoprec.store.store import Store


def run(*arguments):
    """Run a command in this process; return exit code and output."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_a_policy_is_trained_gone_on_with_listed_and_shown(tmp_path):
    store = tmp_path / "store.db"
    code, out = run("policy", "list", "--store", store)
    assert code == 0
    assert re.search(r"shipped \* .*can be used", out)

    train = ("policy", "train", "--seed", 3, "--store", store)
    code, out = run(*train, "--iterations", 1)
    assert code == 0
    assert "1 of 1 iterations, mean reward" in out
    number = int(re.search(r"Policy: (\d+) \(default\) of", out)[1])

    code, out = run(*train, "--iterations", 2, "--resume")
    assert code == 0
    assert "Going on after 1 iterations" in out
    again = int(re.search(r"Policy: (\d+)", out)[1])

    code, out = run("policy", "list", "--store", store)
    assert re.search(rf"{again} \* +│ default .* 2 +│ can be used", out), out
    assert re.search(rf"│ {number} +│ default .* 1 +│ can be used", out), out
    assert "unfinished" not in out
    code, out = run("policy", "show", again, "--store", store)
    assert code == 0
    assert '"seed": 3' in out and '"iterations": 2' in out and "can be used here" in out


def test_a_policy_is_written_to_a_directory_and_trained_on_recorded_landscapes(tmp_path):
    landscape = synthetic_landscape(0, 3, formats=("fp32", "bf16")).record()
    landscape.save(tmp_path / "mine.json")
    code, _ = run(
        "policy", "train", "--iterations", 1, "--landscapes", tmp_path / "mine.json", "--out", tmp_path / "p"
    )
    assert code == 0
    policy = read_policy(tmp_path / "p" / "policy.json")
    assert policy.meta["training"]["recorded"] == [[landscape.name, 8]]
    with pytest.raises(LandscapeError, match=r"missing.json"):
        run("policy", "train", "--landscapes", tmp_path / "missing.json", "--out", tmp_path / "p")


def test_policies_that_cannot_be_used_are_listed_with_the_reason(tmp_path):
    store = str(tmp_path / "store.db")
    policy = export_policy(PolicyNetwork().state_dict(), {})
    with Store.open(store) as opened:
        old = opened.save_policy("default", {"schema": "autoprec.policy/1"}, policy.weights)
    code, out = run("policy", "list", "--store", store)
    assert code == 0
    assert "its schema is 'autoprec.policy/1'" in out
    assert "shipped *" in out
    code, out = run("policy", "show", old, "--store", store)
    assert code == 1
    assert "Cannot be used here: the policy cannot be used: its schema is" in out
    assert run("policy", "show", "shipped")[0] == 0
    with pytest.raises(SettingError, match="policy 'best': give an id of autoprec policy list, or shipped"):
        run("policy", "show", "best", "--store", store)
    with pytest.raises(StoreError, match="99"):
        run("policy", "show", "99", "--store", store)


class Mine:
    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def example_inputs(self):
        return torch.randn(4, 64)


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_job_starts_from_the_stored_policy_and_keeps_what_it_learnt(tmp_path):
    store = str(tmp_path / "store.db")
    torch.manual_seed(1)
    network = PolicyNetwork()
    with Store.open(store) as opened:
        good = export_policy(network.state_dict(), {})
        number = opened.save_policy("default", good.meta, good.weights)
        state = {**network.state_dict(), "caution.bias": torch.full((1,), np.nan)}
        opened.save_policy("default", good.meta, export_policy(state, {}).weights)
    progress = Notes()
    result = autoprec.tune(Mine, objective="memory", searcher="rl", budget=30, store=store, progress=progress)
    assert any("is passed over" in note and "NaN" in note for note in progress.notes)
    with Store.open(store) as opened:
        (learnt,) = opened.policies(name=f"job:{result.job_id}")
    assert learnt.meta["training"]["from"] == f"policy {number} of the store"
    assert learnt.meta["training"]["iterations"] > 0
    assert learnt.meta["training"]["runtime"] == "eager"
    code, out = run("policy", "show", learnt.id, "--store", store)
    assert code == 0
    assert "can be used here" in out
