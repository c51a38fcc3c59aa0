import importlib.util

import pytest


@pytest.fixture(scope="session")
def require_packages():
    """Skip, by name, where a package that a ready-made workload reads is not installed."""

    def require(*names):
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"NOT TESTED HERE: {', '.join(missing)} not installed (see `make install`)")

    return require
