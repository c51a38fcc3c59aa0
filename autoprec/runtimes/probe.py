"""A process apart in which a graph runs once before it runs here: a native crash or a hang stays there.

`python -m autoprec.runtimes.probe RUNTIME` reads a line of JSON for each graph (its file, and that of its
inputs) and answers `ok` or why it fails.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoprec.errors import CandidateError, one_line

LIMIT_SECONDS = 120.0
"""A graph that takes longer to load and run once is taken to hang."""


class Probe:
    """Runs graphs of one runtime in another process; started when first needed.

    Args:
        runtime: Its name.
        limit: Seconds that one graph may take.
    """

    def __init__(self, runtime: str, limit: float = LIMIT_SECONDS) -> None:
        self._runtime = runtime
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None

    def check(self, file: Path, tensors: Mapping[str, Any]) -> None:
        """Load a graph and run it once, apart.

        Args:
            file: The ONNX model.
            tensors: Inputs by name.

        Raises:
            CandidateError: It raises, crashes the process or does not end.
        """
        with tempfile.TemporaryDirectory() as folder:
            inputs = Path(folder) / "inputs.npz"
            arrays: dict[str, Any] = {n: np.asarray(tensor.detach()) for n, tensor in tensors.items()}
            np.savez(inputs, **arrays)
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps([str(file), str(inputs)]) + "\n")
                process.stdin.flush()
                ready, _, _ = select.select([process.stdout], [], [], self._limit)
                answer = process.stdout.readline().strip() if ready else ""
            except OSError:
                ready, answer = [process.stdout], ""
        if not ready:
            self.close()
            raise CandidateError(f"{self._runtime} did not end within {self._limit:g} s")
        if not answer:
            code = process.wait()
            self._process = None
            raise CandidateError(f"{self._runtime} took its process down ({_ended(code)})")
        if answer != "ok":
            raise CandidateError(f"{self._runtime}: {answer}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
                [sys.executable, "-m", __name__, self._runtime],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._process

    def __del__(self) -> None:
        """End the process with the object."""
        self.close()


def _ended(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _onnxruntime(file: str) -> Callable[[dict[str, Any]], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _openvino(file: str) -> Callable[[dict[str, Any]], object]:
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_NUM_THREADS": 1})
    run: Callable[[dict[str, Any]], object] = compiled
    return run


LOADERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}


def main() -> None:
    """Answer until the other side closes."""
    load = LOADERS[sys.argv[1]]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        file, inputs = json.loads(line)
        try:
            with np.load(inputs, allow_pickle=False) as arrays:
                load(file)(dict(arrays))
            answer = "ok"
        except Exception as error:
            answer = one_line(error)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
