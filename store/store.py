"""The store: one class over SQLite or PostgreSQL. Frozen records go in and come out."""

from __future__ import annotations

from types import TracebackType

from autoprec.store.audit import AuditStore
from autoprec.store.database import Database
from autoprec.store.device_profiles import DeviceProfileStore
from autoprec.store.jobs import JobStore
from autoprec.store.leases import LeaseStore
from autoprec.store.plans import PlanStore
from autoprec.store.runs import RunStore
from autoprec.store.schema import head_revision
from autoprec.store.tokens import TokenStore
from autoprec.store.transfer import TransferStore


class Store(
    JobStore, LeaseStore, RunStore, PlanStore, AuditStore, TokenStore, DeviceProfileStore, TransferStore
):
    """Everything that was measured, and what was made of it.

    Thread-safe: share one `Store` between the threads of a process. Any number of processes may open the
    same store; after a fork, open another one. Records are frozen values; no database object leaves.

    Every method is one transaction. What has returned is kept if the process is killed the next instant.
    A transaction that fails for a passing reason (SQLite locked by another writer for longer than it waits,
    a PostgreSQL server that drops the connection or restarts) is tried again four times, after pauses of
    8 seconds in all. That is safe even when the failed one had in fact been committed: writing a record
    twice keeps it once.

    Every method raises `StoreError`, one sentence, where the database cannot do its part. JSON values must
    be finite: write NaN as `None`.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.url = database.url
        """The URL, its password hidden."""
        self.location = database.location
        """Where the store lies, for people: a path, or the URL."""

    @property
    def revision(self) -> str:
        """The schema's revision: that of this version, or the store could not have been opened."""
        return head_revision()

    @classmethod
    def open(cls, url: str | None = None, *, upgrade: bool = True) -> Store:
        """Open a store; a fresh one is created.

        Args:
            url: A file path, `sqlite:///path`, `sqlite://` (memory, gone when closed) or
                `postgresql://user:password@host:port/database`. `None`: what `AUTOPREC_STORE` names,
                else `autoprec.db` in the user's data directory.
            upgrade: Bring an older schema up to date; otherwise it is refused.

        Raises:
            StoreError: The store cannot be opened or made, is not AutoPrec's, or has a newer schema.
        """
        return cls(Database(url, upgrade=upgrade))

    def close(self) -> None:
        """Close every connection. Calling it twice is allowed; every other method then raises."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"
