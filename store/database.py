"""Transactions on the database behind a store: begun, tried again where that helps, explained where not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError, StatementError
from sqlalchemy.orm import Session

from autoprec.errors import MissingError, StoreError
from autoprec.store import engine as engines
from autoprec.store.faults import explain, is_transient
from autoprec.store.models import Base, ContextRow, JobRow, PlanRow, PolicyRow, TokenRow
from autoprec.store.schema import ensure_schema

T = TypeVar("T")
RowT = TypeVar("RowT", ContextRow, JobRow, PlanRow, PolicyRow, TokenRow)

_KINDS: dict[type[Base], str] = {
    ContextRow: "context",
    JobRow: "job",
    PlanRow: "plan",
    PolicyRow: "policy",
    TokenRow: "token",
}
RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)
"""Pauses before each new try of a transaction that failed for a passing reason."""


class Database:
    """A database with the present schema. Thread-safe.

    A transaction is a function of a session. It may be called again after a failure, even after one whose
    commit in fact succeeded, so it must leave the same rows when it is run twice: insert with
    `insert_new` under a key that was made outside of it.

    Attributes:
        url: The URL, its password hidden.
        location: Where the data lies, for people.
    """

    def __init__(self, url: str | None, *, upgrade: bool) -> None:
        """Open the database that `url` names and see to its schema; see `Store.open`.

        Raises:
            StoreError: It cannot be opened, is not AutoPrec's, or its schema does not fit.
        """
        resolved = engines.resolve(url)
        self.url = engines.shown(resolved)
        self.location = engines.location(resolved)
        self._engine = engines.make_engine(resolved)
        self._writer = self._engine.execution_options(**engines.WRITES)
        self._closed = False
        # A server that is not there is said at once; a file that another process is creating is waited for.
        pauses = RETRY_SECONDS if self._engine.dialect.name == "sqlite" else ()
        try:
            self._retry(lambda: ensure_schema(self._engine, self.location, upgrade=upgrade), pauses)
            self._retry(lambda: engines.use_write_ahead_log(self._engine), pauses)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._engine.dispose()

    def read(self, body: Callable[[Session], T]) -> T:
        """Run a transaction that only reads, and return what it returns."""
        return self._transact(self._engine, body)

    def write(self, body: Callable[[Session], T]) -> T:
        """Run a transaction, commit it, and return what it returns."""
        return self._transact(self._writer, body)

    def insert(self, table: type[Base], values: dict[str, Any]) -> Any:
        """Return an INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update`."""
        return self.insert_rows(table, [values])

    def insert_rows(self, table: type[Base], rows: list[dict[str, Any]]) -> Any:
        """Return the same for several rows."""
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        return dialect.insert(table).values(rows)

    def insert_new(self, session: Session, table: type[Base], values: dict[str, Any], *key: str) -> None:
        """Insert a row unless one with its key is there: from a first try, or from another process."""
        session.execute(self.insert(table, values).on_conflict_do_nothing(index_elements=list(key)))

    def get(self, session: Session, table: type[RowT], key: str | int, *, for_update: bool = False) -> RowT:
        """Return the row with this key; `for_update` keeps others from changing it until the end.

        Raises:
            MissingError: There is none.
        """
        row = session.get(table, key, with_for_update=for_update)
        if row is None:
            raise MissingError(f"store {self.location!r} has no {_KINDS[table]} {key!r}")
        return row

    def _transact(self, engine: Engine, body: Callable[[Session], T]) -> T:
        if self._closed:
            raise StoreError(f"store {self.location!r} is closed; open it again")

        def attempt() -> T:
            with Session(engine) as session, session.begin():
                return body(session)

        return self._retry(attempt, RETRY_SECONDS)

    def _retry(self, attempt: Callable[[], T], pauses: tuple[float, ...]) -> T:
        left = iter(pauses)
        while True:
            try:
                return attempt()
            except StatementError as error:
                pause = next(left, None) if is_transient(error) else None
                if pause is None:
                    raise explain(error, self.location) from error
            except SQLAlchemyError as error:
                raise StoreError(f"store {self.location!r} cannot be used ({error})") from error
            time.sleep(pause)
