"""Ray on this machine, for as long as a search under Ray Tune takes."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from autoprec.digest import Digest
from autoprec.errors import AutoPrecError, one_line

OBJECT_STORE_BYTES = 100 * 2**20


class TrialError(AutoPrecError):
    """Ray did not start, or the process of a candidate broke down."""


@functools.cache
def _token() -> str:
    """Return what Ray's parts know each other by: one a process, which a second Ray in it still goes by."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def local_ray(folder: Path, cpus: int, trials: int) -> Iterator[None]:
    """Start Ray on this machine while the body runs; one that this process has already is used and left.

    Ray's files lie in a short path of their own (its sockets cannot have a long one) that is made from the
    folder's, so that what a killed run left is removed by the next.
    """
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # so that Ctrl-C is a KeyboardInterrupt here too
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that finds the budget spent reports nothing
        "TUNE_MAX_PENDING_TRIALS_PG": str(trials),  # the scheduler has to know all of them from the start
        "RAY_AIR_NEW_OUTPUT": "0",  # the other one prints although `verbose` is 0
    }
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        variables["RAY_AUTH_TOKEN"] = _token()  # else Ray writes one into the home directory
    with contextlib.ExitStack() as stack:
        for name, value in variables.items():
            stack.callback(_set_variable, name, os.environ.get(name))
            os.environ[name] = value
        import ray

        if not ray.is_initialized():
            number = Digest().feed(str(folder)).hexdigest()[:12]
            place = Path(tempfile.gettempdir()) / f"autoprec-{os.getuid()}-{number}"
            shutil.rmtree(place, ignore_errors=True)
            try:
                place.mkdir(mode=0o700)  # in a place that all may write to: not one that another user made
            except OSError as error:
                raise TrialError(f"cannot make {str(place)!r} for Ray: {one_line(error)}") from error
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            if threading.current_thread() is threading.main_thread():
                # Ray puts a handler of its own in this place.
                before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
                stack.callback(signal.signal, signal.SIGTERM, before)
            stack.callback(ray.shutdown)
            try:
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    logging_level="CRITICAL",
                    log_to_driver=False,
                    _temp_dir=str(place),
                )
            except Exception as error:  # Ray has no class of its own for this
                raise TrialError(f"Ray did not start here ({one_line(error)}); resume when it can") from error
        yield


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
