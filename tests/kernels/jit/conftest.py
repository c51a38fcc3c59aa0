"""Where the kernels of these tests run: on a GPU where there is one, else in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """The interpreter computes with NumPy, which warns of the NaN and inf that these tests want."""
    import numpy as np

    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
