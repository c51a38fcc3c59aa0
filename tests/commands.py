"""Running the real command in a process of its own, as a user would."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

TINY = """
import os
import torch
from torch import nn

def signature(model):
    '''Return what each layer of a model runs in, or None for the model as it came.'''
    names = [getattr(m, "format_name", "-") for m in model if not isinstance(m, nn.ReLU)]
    return None if set(names) == {"-"} else ",".join(names)

class Tiny:
    def build_model(self):
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    def example_inputs(self):
        return torch.randn(4, 64)
"""


def environment(folder, **more):
    """Return the environment of a command: a store of its own, one thread, plain output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("AUTOPREC_STORE", "PYTHONPATH")}
    return kept | {
        "AUTOPREC_STORE": str(folder / "store.db"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    } | more  # fmt: skip


def start(folder, *arguments, **more):
    """Start `autoprec` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "autoprec", *map(str, arguments)], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(folder, **more),
    )  # fmt: skip


def command(folder, *arguments, **more):
    """Run `autoprec` in a folder to its end; return exit code, stdout and stderr."""
    process = start(folder, *arguments, **more)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


def commands(folder, calls):
    """Run `autoprec` once for each list of arguments, one after the other in one fresh process.

    Importing torch takes seconds, so many quick calls share a process; each still enters as the command does.
    """
    driver = """
        import contextlib, io, json, sys
        from autoprec.__main__ import main
        answers = []
        for arguments in json.load(sys.stdin):
            sys.argv = ["autoprec", *arguments]
            out, err, code = io.StringIO(), io.StringIO(), 0
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    main()
                except SystemExit as error:
                    code = error.code
            answers.append([code, out.getvalue(), err.getvalue()])
        json.dump(answers, sys.stdout)
        """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(driver)], cwd=folder, text=True, capture_output=True,
        env=environment(folder), input=json.dumps([[str(a) for a in call] for call in calls]), check=True,
    )  # fmt: skip
    return [tuple(answer) for answer in json.loads(found.stdout)]


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file of a test; its text may be indented."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path
