"""Schemathesis asks the API all that its description allows, and much that it does not."""

from __future__ import annotations

import contextlib

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from store_samples import make_context, make_job, make_plan, make_run
from test_http import Recorded

from autoprec.server.app import create_app
from autoprec.store.store import Store


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("openapi") / "store.db")
    with Store.open(path) as store:
        key = store.save_context(make_context())
        store.create_job(make_job("j1"))
        store.finish_run("j1", key, make_run())
        store.save_plan("j1", key, "best", make_plan())
        app = create_app(store, require_tokens=False, jobs=Recorded(store))
        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers={"Host": "localhost"})


CHECKS = (
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    negative_data_rejection,
)  # fmt: skip


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_answer_is_as_described(described, mode):
    asked = 0
    for found in described.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def ask(case):
            nonlocal asked
            asked += 1
            case.call_and_validate(headers={"Host": "localhost"}, checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # a route that takes nothing can be asked nothing wrong
            ask()
    assert asked > 300
