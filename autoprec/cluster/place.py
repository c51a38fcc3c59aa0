"""How the parts of a job on a cluster find its store.

A store's URL may hold a password, and Ray shows the environment of a job to everybody who may look at its
dashboard. So the URL travels in a file among the workload's, which only the job's processes read.
"""

from __future__ import annotations

from pathlib import Path

from autoprec.store.store import Store

STORE_FILE = ".autoprec-store"
"""In a job's working directory: the URL of its store."""


def open_store() -> Store:
    """Open the store of the job whose working directory this is; without one, the default store.

    Raises:
        StoreError: It cannot be opened from here.
    """
    try:
        named = Path(STORE_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        named = ""
    return Store.open(named or None)
