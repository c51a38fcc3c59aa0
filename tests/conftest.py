"""Options and fixtures that several folders of tests use."""

import os
import secrets
from pathlib import Path

import pytest
from cluster_nodes import ray_cluster
from postgres import postgres_server

# Before anything imports triton: where there is no GPU, its kernels are run by the interpreter.
if not any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd")):
    os.environ["TRITON_INTERPRET"] = "1"
# Before anything uses Ray, which reads them once in a process: no test's cluster is open to others.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

__all__ = ["postgres_server", "ray_cluster"]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests that load large models")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
