"""What a database's error means: whether to try again, and what to tell the user."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, StatementError

from autoprec.errors import StoreError

_SQLITE_SENTENCES = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again when that one has finished",
    sqlite3.SQLITE_LOCKED: "is locked by another process; try again when that one has finished",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore a copy, or name another file",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; free some space",
    sqlite3.SQLITE_READONLY: "is read-only; make the file and its folder writable, or name another file",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; make its folder writable, or name another file",
    sqlite3.SQLITE_PERM: "cannot be opened; make the file readable and writable, or name another file",
}
_POSTGRES_SENTENCES = {
    "53100": "cannot grow: the server's disk is full; free some space",
    "42501": "refuses this user the right to do so; grant it",
    "25006": "is read-only; name a server that takes writes",
}
# Too many connections, shutting down, crashed, starting up, serialisation failure, deadlock, and a row
# referred to that another transaction has just removed.
_POSTGRES_TRANSIENT = {"53300", "57P01", "57P02", "57P03", "40001", "40P01", "23503"}


def is_transient(error: StatementError) -> bool:
    """Say whether the same transaction may well succeed a little later.

    A lock that SQLite waited for in vain, a connection that PostgreSQL dropped or cannot make now.
    """
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return _sqlite_code(original) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = getattr(original, "sqlstate", None)
    if state is None:
        return type(original).__name__ == "OperationalError"  # psycopg gives none when it cannot connect
    return state in _POSTGRES_TRANSIENT or state.startswith("08")


def explain(error: StatementError, place: str) -> StoreError:
    """Return the error to raise for a database's error, in one sentence about the store at `place`."""
    original = error.orig
    if isinstance(original, StoreError):
        return original
    reason = str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__
    if isinstance(original, sqlite3.Error):
        told = _SQLITE_SENTENCES.get(_sqlite_code(original))
    else:
        told = _POSTGRES_SENTENCES.get(getattr(original, "sqlstate", None) or "")
    return StoreError(f"store {place!r} {told or 'cannot be used'} ({reason})")


def _sqlite_code(error: sqlite3.Error) -> int:
    # Errors that the driver itself raises, not SQLite, carry no code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
