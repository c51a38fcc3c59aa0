import importlib
import inspect

import pytest
import torch

from autoprec.kernels.jit.compiling import OPERATIONS
from autoprec.kernels.jit.launch import on_its_device


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_launcher_goes_to_its_tensors_device(operation):
    module = importlib.import_module(f"autoprec.kernels.jit.{operation}")
    launchers = [
        item for name, item in inspect.getmembers(module, inspect.isfunction) if name.startswith("launch")
    ]
    assert launchers
    switched = on_its_device(lambda first: first).__code__
    assert all(item.__code__ is switched for item in launchers)


def test_a_launcher_keeps_its_name_and_gets_all_arguments():
    @on_its_device
    def launch(first, second, *, third):
        """Return what was given."""
        return first, second, third

    given = torch.ones(2)
    assert launch(given, 1, third=2) == (given, 1, 2)
    assert (launch.__name__, launch.__doc__) == ("launch", "Return what was given.")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_is_current_while_a_launcher_runs_and_no_longer():
    launch = on_its_device(lambda first: torch.cuda.current_device())
    assert launch(torch.ones(1, device="cuda:1")) == 1
    assert torch.cuda.current_device() == 0
