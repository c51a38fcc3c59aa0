import pytest
from made_results import make_result


@pytest.fixture(scope="session")
def encoder():
    """A finished search over the 28 units of an encoder."""
    return make_result()
