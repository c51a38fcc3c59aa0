"""The schema's version: a fresh database is created, an older one brought up to date, a foreign one refused.

All of it happens in one transaction under one lock, so any number of processes may open a fresh store at
once, and a process killed half-way leaves the database as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from autoprec.errors import StoreError
from autoprec.store.engine import WRITES

VERSION_TABLE = "autoprec_version"
"""Not Alembic's default name: its presence says that the database is AutoPrec's."""
_LOCK_KEY = 0x6175746F70726563  # "autoprec", for PostgreSQL's advisory lock
_ALEMBIC = threading.Lock()  # Alembic keeps the running migration in module globals


def ensure_schema(engine: Engine, place: str, *, upgrade: bool) -> None:
    """Bring a database to the schema that this version writes.

    Raises:
        StoreError: The schema is newer, or older with `upgrade` false, or the database is somebody else's.
        sqlalchemy.exc.DBAPIError: The database cannot be used.
    """
    config = alembic_config()
    scripts = ScriptDirectory.from_config(config)
    head = str(scripts.get_current_head())
    with engine.connect() as connection:
        if _revision(connection) == head:
            return
    with (
        _ALEMBIC,
        engine.execution_options(**WRITES).connect() as connection,
        _keys_unchecked(connection),
        connection.begin(),
    ):
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        found = _revision(connection)
        if found is None:
            _refuse_foreign(connection, place)
        elif found not in {script.revision for script in scripts.walk_revisions()}:
            raise StoreError(
                f"store {place!r} was written by a newer AutoPrec (schema {found!r}, this version writes "
                f"{head!r}); update AutoPrec, or name another store"
            )
        elif found != head and not upgrade:
            raise StoreError(
                f"store {place!r} has the older schema {found!r}, this version writes {head!r}; copy it if "
                "an older AutoPrec still needs it, then open it once with Store.open(url, upgrade=True)"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        if connection.dialect.name == "sqlite" and connection.execute(text("PRAGMA foreign_key_check")).all():
            raise StoreError(
                f"store {place!r} could not be brought up to date: rows would lose what they name"
            )


@contextmanager
def _keys_unchecked(connection: Connection) -> Iterator[None]:
    """Turn SQLite's foreign keys off for a transaction that begins in the body, as SQLite asks for.

    SQLite changes a table by making it anew and dropping the old one, which counts as deleting its rows: what
    refers to them with `ON DELETE CASCADE` would go as well.
    """
    raw = connection.connection.driver_connection if connection.dialect.name == "sqlite" else None
    if raw is None:
        yield
        return
    raw.execute("PRAGMA foreign_keys=OFF")  # not by SQLAlchemy, which would begin a transaction first
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


def alembic_config() -> Config:
    """Return the configuration of the migrations that are shipped in the package. No file is needed."""
    config = Config()
    config.set_main_option("script_location", "autoprec.store:migrations")
    config.attributes["version_table"] = VERSION_TABLE
    return config


def head_revision() -> str:
    """Return the revision of the schema that this version writes."""
    return str(ScriptDirectory.from_config(alembic_config()).get_current_head())


def _revision(connection: Connection) -> str | None:
    options = {"version_table": VERSION_TABLE}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _refuse_foreign(connection: Connection, place: str) -> None:
    """Refuse a database that has tables, none of which says that it is AutoPrec's.

    A path given by mistake, such as another tool's file, is far more likely than the wish to share. Who
    shares a PostgreSQL server gives AutoPrec a database, or a schema by `?options=-csearch_path%3Dname`.
    """
    tables = inspect(connection).get_table_names()
    if tables:
        raise StoreError(
            f"store {place!r} holds tables of something else ({', '.join(sorted(tables)[:3])}); "
            "give AutoPrec a database of its own"
        )
