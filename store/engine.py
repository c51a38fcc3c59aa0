"""Where a store lies: from what the user names to a SQLAlchemy engine that many may use at once."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

from platformdirs import user_data_path
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from autoprec.errors import StoreError

ENVIRONMENT = "AUTOPREC_STORE"
BUSY_SECONDS = 10.0
"""How long SQLite waits for another writer; `?timeout=` in the URL says otherwise."""
CONNECT_SECONDS = 10
"""How long to wait for a PostgreSQL server; `?connect_timeout=` in the URL says otherwise."""
WRITES = {"sqlite_begin": "BEGIN IMMEDIATE"}
"""Execution options of a transaction that writes. SQLite then takes the write lock at once, waiting its
turn. A transaction that reads first and writes later fails instead when another wrote in between."""
_HIDDEN = ("password", "sslpassword")


def resolve(url: str | None) -> URL:
    """Return the URL of a store.

    Args:
        url: A path, or a URL of SQLite or PostgreSQL. `None`: what `AUTOPREC_STORE` names, else
            `autoprec.db` in the user's data directory, which is made when needed.

    Raises:
        StoreError: It names no kind of store that is known, or no place where a file can lie.
    """
    named = url if url is not None else os.environ.get(ENVIRONMENT) or _default_path()
    if not named.strip():
        raise StoreError("the store's name is empty; give a file path or a URL")
    if "://" not in named:
        if re.match(r"(sqlite|postgres(ql)?)(\+\w+)?:", named):
            raise StoreError(
                f"the store begins with {named.partition(':')[0]!r} and is neither a path nor a URL; "
                "a URL has '://' after its first word"
            )
        return _file(URL.create("sqlite", database=named))
    try:
        parsed = make_url(named)
    except (ArgumentError, ValueError):
        # What cannot be parsed cannot be shown either: the password could be anywhere in it.
        raise StoreError(
            "the store's URL cannot be read; write sqlite:///path or postgresql://user:password@host:port/database"
        ) from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        _check_sqlite_options(parsed)
        return parsed if is_memory(parsed) else _file(parsed)
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise StoreError(
        f"store {shown(parsed)!r} is of kind {parsed.drivername!r}; use sqlite:///path or postgresql://..."
    )


def is_memory(url: URL) -> bool:
    """Say whether a URL names a SQLite database in memory."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def shown(url: URL) -> str:
    """Return the URL for people, without its password."""
    query = {name: "***" if name in _HIDDEN else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def location(url: URL) -> str:
    """Return where the store lies, in the shortest form that people can use: a path, or a URL."""
    if url.get_backend_name() != "sqlite":
        return shown(url)
    return "memory" if is_memory(url) else str(url.database)


def make_engine(url: URL) -> Engine:
    """Return an engine for a URL that `resolve` gave. Nothing is connected yet.

    Raises:
        StoreError: The database's driver is not installed.
    """
    options: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        if "timeout" not in url.query:
            arguments["timeout"] = BUSY_SECONDS
        # Connections move between threads, one thread at a time. A database in memory has one
        # connection only, for which threads take turns.
        arguments["check_same_thread"] = False
        options["poolclass"] = QueuePool
        if is_memory(url):
            options |= {"pool_size": 1, "max_overflow": 0, "pool_timeout": 600}
    elif "connect_timeout" not in url.query:
        arguments["connect_timeout"] = CONNECT_SECONDS
    try:
        engine = create_engine(
            url,
            connect_args=arguments,
            json_serializer=functools.partial(json.dumps, allow_nan=False),
            **options,
        )
    except NoSuchModuleError as error:
        raise StoreError(f"store {shown(url)!r} is of an unknown kind; use sqlite or postgresql") from error
    except ImportError as error:
        raise StoreError(
            f"store {shown(url)!r} needs the PostgreSQL driver; run: pip install 'autoprec[postgres]'"
        ) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def use_write_ahead_log(engine: Engine) -> None:
    """Switch a SQLite file to the write-ahead log: readers and the writer then never wait for each other.

    The file remembers it. It needs shared memory, so a store must not lie on a network share.
    """
    if engine.dialect.name == "sqlite":
        with engine.connect().execution_options(sqlite_begin=None) as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Python's driver would begin transactions by its own rules and never before DDL, so that half a
    # migration could stay: `_begin_sqlite` begins them instead.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    # With the write-ahead log nothing committed is lost when the process dies, only when the power
    # fails; the file is sound in both cases.
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    statement = connection.get_execution_options().get("sqlite_begin", "BEGIN")
    if statement is not None:
        connection.exec_driver_sql(statement)


def _default_path() -> str:
    folder = user_data_path("autoprec")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {str(folder)!r} for the store: {error.strerror}; "
            f"name another place with --store or {ENVIRONMENT}"
        ) from error
    return str(folder / "autoprec.db")


def _file(url: URL) -> URL:
    named = str(url.database)
    if "\x00" in named:
        raise StoreError(f"store {named!r} is not a path that can be opened: it holds a NUL character")
    try:
        path = Path(named).expanduser().absolute()
        if path.is_dir():
            raise StoreError(f"store {str(path)!r} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise StoreError(
                f"store {str(path)!r} lies in a folder that does not exist; make the folder first"
            )
    except (OSError, RuntimeError) as error:  # a name too long, no such user
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"store {named!r} is not a path that can be opened: {reason}") from error
    return url.set(database=str(path))


def _check_sqlite_options(url: URL) -> None:
    for name, value in url.query.items():
        if name != "timeout" or not re.fullmatch(r"\d+(\.\d+)?", str(value)):
            raise StoreError(
                f"store {shown(url)!r} has the option {name}={value}; SQLite takes timeout=SECONDS only"
            )
