"""The script that tunes on a GPU: run whole where there is none, with its tiny model on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autoprec.plan import Plan

ROOT = Path(__file__).parent.parent


def script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.tune", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = script("--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "finds no GPU here" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_job_runs_from_end_to_end(tmp_path: Path) -> None:
    done = script("--device", "cpu", "--budget", 3, "--out", tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert "best lossless" in done.stdout and "3 measured runs" in done.stdout
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.evidence is not None and plan.evidence.device.runtime == "eager"
    assert plan.evidence.shapes == ("int64[1, 1]", "int64[1, 64]")
    assert (tmp_path / "report.html").stat().st_size > 10_000
