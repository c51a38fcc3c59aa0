"""The HTTP API over a real server and a real store."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from store_samples import make_context, make_job, make_plan, make_run

from autoprec.errors import SettingError
from autoprec.plan import Plan
from autoprec.server.app import create_app
from autoprec.store.store import Store


class Recorded:
    """Takes jobs as a cluster would, into the same store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def submit(self, asked, *, key, owner):
        if asked.workload == "no.such:Workload":
            raise SettingError("workload is 'no.such:Workload'; there is none")
        given = make_job(
            f"new-{len(self.store.jobs(limit=None))}", workload=asked.workload, state="queued",
            idempotency_key=key, owner=owner,
        )  # fmt: skip
        return self.store.create_job(given).id

    def stop(self, job_id, *, who):
        self.store.audit("job", job_id, who=who, what="stopped")
        self.store.update_job(job_id, state="interrupted")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_server").create_database())
    else:
        url = str(tmp_path / "store.db")
    with Store.open(url) as opened:
        key = opened.save_context(make_context())
        opened.create_job(make_job("j1"))
        for name in ("p1", "p2", "p3"):
            opened.finish_run("j1", key, make_run(name))
        for speedup in (2.0, 3.0, 1.5):
            opened.save_plan("j1", key, "best", make_plan(speedup=speedup, drop=speedup / 100))
        yield opened


@pytest.fixture
def serve(store: Store) -> Iterator:
    """Serve the store; gives a function from options of the application to a client."""
    running = []

    def start(**options) -> httpx.Client:
        app = create_app(store, jobs=Recorded(store), **({"require_tokens": False} | options))
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}/api/v1")

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


def test_a_trainer_without_this_package_gets_its_plan(serve, store):
    client = serve()
    best = client.get("/plans/best", params={"workload": "minilm", "max_quality_drop": 0.025}).json()
    assert best["speedup"] == 2.0 and best["state"] == "candidate"
    answer = client.get(f"/plans/{best['id']}/plan.json")
    assert answer.text == store.plan(best["id"]).plan
    assert Plan.from_json(answer.text, source="http").formats == {"encoder.0": "int8_dynamic"}
    again = client.get(answer.url, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(answer.url, headers={"If-None-Match": '"other"'}).status_code == 200
    nothing = client.get("/plans/best", params={"workload": "minilm", "max_quality_drop": 0})
    assert nothing.status_code == 404 and nothing.headers["content-type"] == "application/problem+json"


def test_lists_come_in_pages(serve):
    client = serve()
    first = client.get("/plans", params={"limit": 2})
    assert [plan["speedup"] for plan in first.json()] == [1.5, 3.0]
    rest = client.get(first.links["next"]["url"].removeprefix("/api/v1"))
    assert [plan["speedup"] for plan in rest.json()] == [2.0] and "next" not in rest.links
    runs = client.get("/jobs/j1/runs", params={"limit": 2})
    more = client.get(runs.links["next"]["url"].removeprefix("/api/v1"))
    assert [run["plan_key"] for run in (*runs.json(), *more.json())] == ["p1", "p2", "p3"]
    for cursor in ("%%%", "bm90IGEgbnVtYmVy", "4pyT", "", "AA"):
        assert client.get("/plans", params={"cursor": cursor}).status_code == 400
    for cursor in ("bm9ib2R5", "AA", ""):  # nobody, NUL, nothing
        assert client.get("/jobs", params={"cursor": cursor}).status_code == 400
    assert len(client.get("/plans", params={"objective": "latency", "fingerprint": "f1"}).json()) == 3
    assert client.get("/plans", params={"objective": "memory"}).json() == []


def test_a_filter_that_is_spelt_wrongly_is_refused_and_does_not_give_everything(serve):
    client = serve()
    for query in ("max_memory=1", "workload=minilm&objectiv=memory", "workload=a&workload=b"):
        answer = client.get(f"/plans/best?{query}")
        assert answer.status_code == 400 and "parameter" in answer.json()["detail"]
    assert client.post("/plans/1/state?note=x", json={"state": "retired"}).status_code == 400
    assert client.get("/health?x=1").status_code == 400


def test_a_plan_moves_along_its_life_cycle_and_one_is_deployed(serve, store):
    client = serve()
    assert client.post("/plans/1/state", json={"state": "deployed"}).json()["state"] == "deployed"
    assert client.post("/plans/2/state", json={"state": "deployed", "note": "faster"}).status_code == 200
    assert client.get("/plans/1").json()["state"] == "verified"
    assert client.get("/plans", params={"state": "deployed"}).json()[0]["id"] == 2
    assert client.post("/plans/2/state", json={"state": "retired"}).status_code == 200
    refused = client.post("/plans/2/state", json={"state": "deployed"})
    assert refused.status_code == 409 and "retired and cannot become deployed" in refused.json()["detail"]
    assert client.get("/plans/best", params={"workload": "minilm"}).json()["id"] != 2
    events = client.get("/plans/2/events").json()
    assert [(event["before"], event["after"]) for event in events] == [
        (None, "candidate"), ("candidate", "deployed"), ("deployed", "retired"),
    ]  # fmt: skip
    assert events[1]["note"] == "faster"


def test_tokens_are_asked_for_and_say_what_they_allow(serve, store):
    client = serve(require_tokens=True)
    secrets = {scope: store.create_token(scope, scope) for scope in ("read", "submit", "admin")}

    def asked(method, path, scope, **given):
        headers = {} if scope is None else {"Authorization": f"Bearer {secrets.get(scope, scope)}"}
        return client.request(method, path, headers=headers, **given)

    assert client.get("/health").status_code == 200
    for scope in (None, "ap_wrong", "x"):
        answer = asked("GET", "/plans", scope)
        told = "Bearer" if scope is None else 'Bearer error="invalid_token"'
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, told)
    assert all(asked("GET", "/plans", scope).status_code == 200 for scope in secrets)
    job = {"json": {"workload": "minilm"}}
    lacking = asked("POST", "/jobs", "read", **job)
    assert lacking.status_code == 403
    assert lacking.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="submit"'
    assert asked("POST", "/jobs", "submit", **job).json()["owner"] == "token submit"
    assert asked("POST", "/plans/1/state", "submit", json={"state": "verified"}).status_code == 403
    assert asked("POST", "/plans/1/state", "admin", json={"state": "verified"}).status_code == 200
    assert store.plan_events(1)[-1].who == "token admin"
    store.revoke_token("admin")
    revoked = asked("GET", "/plans", "admin")
    assert revoked.status_code == 401 and "revoked" in revoked.json()["detail"]
    kept = store.tokens()
    assert all(secret not in repr(kept) for secret in secrets.values())


def test_without_tokens_only_this_machine_is_answered_and_no_page_of_another_site(serve):
    client = serve()
    port = client.base_url.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert client.get("/plans", headers={"Host": host}).status_code == 200
    assert client.get("/plans", headers={"Host": "rebound.example"}).status_code == 403
    job = {"workload": "minilm"}
    assert client.post("/jobs", json=job, headers={"Origin": "https://evil.example"}).status_code == 403
    for other in ("null", "http://127.0.0.1:1", f"http://localhost:{port}"):
        assert client.post("/jobs/j1/stop", headers={"Origin": other}).status_code == 403
    assert client.post("/jobs", json=job, headers={"Origin": f"http://127.0.0.1:{port}"}).status_code == 201


def test_jobs_are_submitted_once_a_key_and_stopped(serve, store):
    client = serve()
    headers = {"Idempotency-Key": "k"}
    first, again = (client.post("/jobs", json={"workload": "minilm"}, headers=headers) for _ in range(2))
    assert first.status_code == 201 and first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == f"/api/v1/jobs/{first.json()['id']}"
    assert client.post(f"/jobs/{first.json()['id']}/stop").json()["state"] == "interrupted"
    assert store.audit_events(subject="job")[0].who == "somebody on the server's machine"
    unknown = client.post("/jobs", json={"workload": "no.such:Workload"})
    assert unknown.status_code == 422 and "there is none" in unknown.json()["detail"]
    for wrong in ({}, {"workload": "x", "surprise": 1}, {"workload": "x", "seed": -1}, {"workload": "a\0"}):
        answer = client.post("/jobs", json=wrong)
        assert answer.status_code == 422 and answer.json()["status"] == 422
    too_long = client.post("/jobs", content=b"[" + b"1," * 40_000 + b"1]")
    assert too_long.status_code == 413
    assert client.post("/jobs", content=(b"[" for _ in range(70_000))).status_code == 413


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE plans; --", "../../etc/passwd", "%2e%2e/x", "a" * 500, "\u2603", "%7f", "%00"]
)
def test_tricks_in_names_find_nothing(serve, store, name):
    client = serve()
    assert client.get("/plans", params={"workload": name, "job": name}).json() == []
    assert client.get(f"/jobs/{name}").status_code in (404, 422)
    assert client.get(f"/plans/{name}/plan.json").status_code in (404, 422)
    assert len(store.plans()) == 3


def test_what_two_plans_run_differently(serve, store):
    key = store.save_context(make_context())
    other = store.save_plan("j1", key, "front", make_plan("onednn"))
    client = serve()
    assert client.get("/plans/diff", params={"a": 1, "b": 2}).json() == []
    (unit,) = client.get("/plans/diff", params={"a": 1, "b": other}).json()
    assert (unit["a_kernels"], unit["b_kernels"]) == (["fbgemm"], ["onednn"])


def test_what_goes_wrong_does_not_say_where_the_store_lies(serve, store, capsys):
    client = serve()
    missing = [
        client.get(path) for path in ("/plans/99", "/jobs/j9", "/plans/99/events", "/plans/diff?a=1&b=99")
    ]
    store.close()
    gone = [client.get(path) for path in ("/plans", "/health")]
    assert [answer.status_code for answer in (*missing, *gone)] == [404] * 4 + [503] * 2
    assert not any(store.location in answer.text for answer in (*missing, *gone))
    assert "is closed" in capsys.readouterr().err


def test_a_method_that_a_path_does_not_take_is_refused_with_those_that_it_does(serve):
    client = serve()
    for path, takes in (("/jobs", "GET, POST"), ("/plans", "GET"), ("/plans/1/state", "POST")):
        answer = client.delete(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, takes)
