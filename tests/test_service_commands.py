"""The commands over a store: plans, tokens, moving, serving; through the real command line."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from store_samples import make_context, make_job, make_plan

import autoprec
from autoprec.errors import SettingError
from autoprec.plan import Plan
from autoprec.serve_command import ClusterJobs
from autoprec.store.store import Store


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `autoprec` in a process of its own."""
    command = [sys.executable, "-m", "autoprec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with three plans of one job."""
    path = str(tmp_path / "store.db")
    with Store.open(path) as opened:
        key = opened.save_context(make_context())
        opened.create_job(make_job("j1", state="finished", owner="ada@here"))
        for speedup, kernel in ((2.0, "fbgemm"), (3.0, "fbgemm"), (1.5, "onednn")):
            opened.save_plan("j1", key, "best", make_plan(kernel, speedup=speedup, drop=speedup / 100))
    return path


def test_plans_are_listed_shown_compared_and_exported(store, tmp_path):
    listed = run("plans", "list", "--store", store)
    assert listed.returncode == 0 and listed.stdout.count("minilm") == 3
    assert "no such plan" in run("plans", "list", "--workload", "other", "--store", store).stdout
    shown = run("plans", "show", "1", "--store", store).stdout
    for words in ("int8_dynamic", "fbgemm", "2.000x", "accuracy", "ada@here", "candidate"):
        assert words in shown
    assert run("plans", "diff", "1", "2", "--store", store).returncode == 0
    differing = run("plans", "diff", "1", "3", "--store", store)
    assert differing.returncode == 1 and "onednn" in differing.stdout
    out = tmp_path / "plan.json"
    assert run("plans", "export", "1", "--out", str(out), "--store", store).returncode == 0
    assert Plan.load(out).evidence.speedup.value == 2.0


def test_plans_are_promoted_and_retired(store):
    for state in ("verified", "deployed"):
        assert f"Plan 1 is {state}" in run("plans", "promote", "1", "--store", store).stdout
    again = run("plans", "promote", "1", "--store", store)
    assert again.returncode == 2 and "name what it should become with --to" in again.stderr
    assert "Plan 2 is deployed" in run("plans", "promote", "2", "--to", "deployed", "--store", store).stdout
    assert run("plans", "retire", "2", "--note", "NaN at step 80000", "--store", store).returncode == 0
    refused = run("plans", "promote", "2", "--to", "deployed", "--store", store)
    assert refused.returncode == 2 and "it can become candidate" in refused.stderr
    assert "NaN at step 80000" in run("plans", "show", "2", "--store", store).stdout
    missing = run("plans", "show", "99", "--store", store)
    assert missing.returncode == 2 and "has no plan 99" in missing.stderr
    assert "Traceback" not in again.stderr + refused.stderr + missing.stderr


def test_python_gives_plans_by_architecture_device_and_limit(store):
    fingerprint = "0" * 32
    with Store.open(store) as opened:
        key = opened.save_context(make_context(architecture=fingerprint))
        small = opened.save_plan("j1", key, "front", make_plan(plan_bytes=10))
        opened.save_plan("j1", key, "front", make_plan(speedup=4.0, plan_bytes=90_000_000))
    given = {"max_quality_drop": 0.05, "store": store, "device": "cpu-1"}
    assert autoprec.best_plan(fingerprint, **given).evidence.speedup.value == 4.0
    assert autoprec.best_plan(fingerprint, max_memory="80MB", **given).evidence.plan_bytes == 10
    assert autoprec.best_plan(fingerprint, **(given | {"device": "cpu-2"})) is None
    assert autoprec.best_plan(fingerprint, state="deployed", **given) is None
    with pytest.raises(SettingError, match="best_plan takes a size"):
        autoprec.best_plan(fingerprint, max_memory="40%", **given)
    assert [plan.id for plan in autoprec.plans(architecture=fingerprint, store=store)][-1] == small
    assert len(autoprec.plans(store=store, limit=2)) == 2
    found = run(
        "plans", "best", fingerprint, "--device", "cpu-1", "--max-quality-drop", "0.05", "--store", store
    )
    assert found.returncode == 0 and "4.000x" in found.stdout


def test_a_store_is_checked_and_moved(store, tmp_path):
    file, other = str(tmp_path / "all.gz"), str(tmp_path / "other.db")
    assert "is sound (schema 0006)" in run("store", "check", "--store", store).stdout
    assert f"Wrote {file}" in run("store", "export", file, "--store", store).stdout
    assert "is up to date" in run("store", "upgrade", "--store", other).stdout
    assert run("store", "import", file, "--store", other).returncode == 0
    assert run("plans", "list", "--store", other).stdout.count("minilm") == 3
    damaged = run("store", "import", store, "--store", other)
    assert damaged.returncode == 2 and "no gzip file" in damaged.stderr
    assert "j1" in run("jobs", "list", "--store", other).stdout
    shown = run("jobs", "show", "j1", "--store", other).stdout
    assert "ada@here" in shown and "3.000x" in shown
    for command in ("stop", "resume", "logs"):
        refused = run("jobs", command, "j1", "--store", other)
        assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1


def test_the_store_is_served_to_who_has_a_token(store):
    refused = run("serve", "--host", "0.0.0.0", "--store", store)
    assert refused.returncode == 2 and "autoprec tokens create NAME --scope admin" in refused.stderr
    secret = run("tokens", "create", "trainer", "--store", store).stdout.strip()
    assert secret.startswith("ap_") and secret not in run("tokens", "list", "--store", store).stdout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = run("serve", "--port", str(port), "--store", store)
        assert busy.returncode == 2 and f"cannot listen at 127.0.0.1 port {port}" in busy.stderr
    command = [
        sys.executable, "-m", "autoprec", "serve", "--port", "0", "--require-tokens", "--store", store,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            url = re.search(r"http://\S+", line)[0]
            assert "(tokens required)" in line
            assert httpx.get(f"{url}/plans/1").status_code == 401
            headers = {"Authorization": f"Bearer {secret}"}
            assert json.loads(httpx.get(f"{url}/plans/1/plan.json", headers=headers).text)["units"]
            nowhere = httpx.post(f"{url}/jobs", headers=headers, json={"workload": "minilm"})
            assert nowhere.status_code == 403
            assert "Token trainer is revoked" in run("tokens", "revoke", "trainer", "--store", store).stdout
            assert httpx.get(f"{url}/plans/1", headers=headers).status_code == 401
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0 and server.stderr.read() == ""


def test_a_server_takes_workloads_from_its_directory_only(tmp_path):
    inside = tmp_path / "workloads"
    inside.mkdir()
    for file in (tmp_path / "outside.py", inside / "mine.py"):
        file.write_text("")
    (inside / "link.py").symlink_to(tmp_path / "outside.py")
    jobs = ClusterJobs("http://127.0.0.1:1", "sqlite://", inside)
    assert jobs._place("mine.py:Outer.Mine") == f"{inside / 'mine.py'}:Outer.Mine"
    assert jobs._place("minilm") == "minilm"
    outside = tmp_path / "outside.py"
    for name in (f"{outside}:A", f"{outside}:A.B", "../outside.py:A", "../outside.py:A.B", "link.py:A",
                 "x\n/../../outside.py:A", f"{'a' * 300}.py:A", "mine.py/../../outside.py:A"):  # fmt: skip
        with pytest.raises(SettingError, match="hold no such file"):
            jobs._place(name)
    with pytest.raises(SettingError, match="takes none"):
        ClusterJobs("http://127.0.0.1:1", "sqlite://", None)._place("mine.py:Outer.Mine")
