"""The store's part for moving what it holds into another: one file, the same for SQLite and PostgreSQL.

The file is gzip of JSON lines: a head, then a line for each row, parents before what refers to them. Numbers
that a database gives are left out; rows are known by their digests. Tokens, and what is in flight, stay.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Boolean, Double, LargeBinary, select, text
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.files import put_in_one_step
from autoprec.store.checks import check_safetensors
from autoprec.store.database import Database
from autoprec.store.models import (
    AuditRow,
    Base,
    BigInt,
    ContextRow,
    DeviceProfileRow,
    JobRow,
    JobRunRow,
    PlanRow,
    PolicyRow,
    ProfileRow,
    RunRow,
    UTCDateTime,
)
from autoprec.store.schema import head_revision
from autoprec.strict_json import parse

FORMAT = "autoprec.store/1"
TABLES: tuple[type[Base], ...] = (
    ContextRow, JobRow, ProfileRow, RunRow, JobRunRow, PlanRow, PolicyRow, DeviceProfileRow, AuditRow,
)  # fmt: skip
_NOT_KEPT = frozenset({"run_id", "lease_token", "lease_until"})
_BATCH = 500
"""Rows inserted at once: SQLite takes at most 32 766 values in a statement."""


class TransferStore:
    """Export and import, and a check of what there is."""

    _db: Database

    def export_to(self, path: Path) -> dict[str, int]:
        """Write everything but tokens to a file, as it is at one moment; return the rows of each table.

        Raises:
            StoreError: The file cannot be written.
        """

        def body(session: Session) -> dict[str, int]:
            if session.get_bind().dialect.name == "postgresql":
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            counts = dict.fromkeys((table.__tablename__ for table in TABLES), 0)
            try:
                with (
                    put_in_one_step(path) as partial,
                    gzip.open(partial, "wt", encoding="utf-8", compresslevel=3) as file,
                ):
                    _write_line(file.write, {"format": FORMAT, "schema": head_revision()})
                    for table in TABLES:
                        for row in _rows(session, table):
                            _write_line(file.write, {"table": table.__tablename__, "row": row})
                            counts[table.__tablename__] += 1
            except OSError as error:
                raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
            return counts

        return self._db.read(body)

    def import_from(self, path: Path) -> dict[str, int]:
        """Take in everything that a file holds and this store does not; return the rows read of each table.

        All of it or nothing: it is one transaction. What is here already stays as it is.

        Raises:
            StoreError: The file cannot be read, is damaged, or is of another schema; names the line.
        """

        def body(session: Session) -> dict[str, int]:
            counts = dict.fromkeys((table.__tablename__ for table in TABLES), 0)
            batch: list[dict[str, Any]] = []
            of: type[Base] = TABLES[0]
            for table, row in _read(path):
                if table is not of or len(batch) >= _BATCH:
                    self._insert(session, of, batch)
                    batch = []
                if TABLES.index(table) < TABLES.index(of):
                    raise StoreError(f"{str(path)!r} is damaged: rows of {table.__tablename__} come too late")
                of = table
                batch.append(row)
                counts[table.__tablename__] += 1
            self._insert(session, of, batch)
            return counts

        return self._db.write(body)

    def check(self) -> dict[str, int]:
        """Check that the database is sound; return the rows of each table.

        Raises:
            StoreError: It is damaged, or rows refer to what is not there.
        """

        def body(session: Session) -> dict[str, int]:
            if session.get_bind().dialect.name == "sqlite":
                found = session.execute(text("PRAGMA integrity_check")).scalars().all()
                if found != ["ok"]:
                    raise StoreError(f"store {self._db.location!r} is damaged ({found[0]}); restore a copy")
                loose = session.execute(text("PRAGMA foreign_key_check")).all()
                if loose:
                    raise StoreError(
                        f"store {self._db.location!r}: {len(loose)} rows refer to what is not there, the "
                        f"first in table {loose[0][0]!r}; restore a copy"
                    )
            names = sorted(Base.metadata.tables)
            count = "SELECT count(*) FROM {}"  # names of our own tables
            return {name: session.execute(text(count.format(name))).scalar_one() for name in names}

        return self._db.read(body)

    def _insert(self, session: Session, table: type[Base], rows: list[dict[str, Any]]) -> None:
        """Insert rows that are not there yet, with the numbers that this database gave what they refer to."""
        if not rows:
            return
        if table is JobRunRow:
            rows = _numbered(session, rows, RunRow, "run", "run_id")
        if table is AuditRow:
            rows = _of_plans_here(session, rows)
        session.execute(self._db.insert_rows(table, rows).on_conflict_do_nothing())


def _rows(session: Session, table: type[Base]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as JSON holds them, in the order in which they were made."""
    columns = _columns(table)
    keys: Any = table.__table__.primary_key
    query: Any = select(*columns).order_by(*keys)
    if table is JobRunRow:
        query = query.add_columns(RunRow.digest.label("run")).join(RunRow, RunRow.id == JobRunRow.run_id)
    if table is AuditRow:
        named = (AuditRow.subject == "plan") & (AuditRow.key == PlanRow.id.cast(AuditRow.key.type))
        query = query.add_columns(PlanRow.digest.label("plan")).join(PlanRow, named, isouter=True)
    for row in session.execute(query.execution_options(yield_per=_BATCH)).mappings():
        yield {name: _to_json(value) for name, value in row.items()}


def _columns(table: type[Base]) -> list[Any]:
    """Return the columns that travel: all but numbers that a database gives, and what is in flight."""
    return [
        column
        for column in table.__table__.columns
        if column.name not in _NOT_KEPT
        and not (column.name == "id" and isinstance(column.type, type(BigInt)))
    ]


def _read(path: Path) -> Iterator[tuple[type[Base], dict[str, Any]]]:
    """Yield table and row of each line of a file.

    Raises:
        StoreError: It cannot be read, or a line is not what it should be.
    """
    named = {table.__tablename__: table for table in TABLES}
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                told = parse(line)
                if number == 1:
                    _check_head(path, told)
                    continue
                table = named[told["table"]]
                yield table, _from_json(table, told["row"])
    except OSError as error:
        reason = "it is no gzip file" if isinstance(error, gzip.BadGzipFile) else error.strerror or error
        raise StoreError(f"cannot read {str(path)!r}: {reason}") from error
    except (ValueError, TypeError, KeyError, EOFError, zlib.error, RecursionError) as error:
        raise StoreError(
            f"{str(path)!r} is damaged near line {number} ({type(error).__name__}: {error}); export it again"
        ) from error
    if number == 0:
        raise StoreError(f"{str(path)!r} is empty; export it again")


def _check_head(path: Path, head: Any) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise StoreError(f"{str(path)!r} is no export of a store; write one with: autoprec store export FILE")
    if head.get("schema") != head_revision():
        raise StoreError(
            f"{str(path)!r} was written with schema {head.get('schema')!r}, and this version reads "
            f"{head_revision()!r}; export it with the same version of AutoPrec"
        )


def _to_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def _from_json(table: type[Base], row: Any) -> dict[str, Any]:
    """Return the values of a row, each of the kind that its column holds.

    Raises:
        ValueError: A column is missing, unknown, or of another kind.
    """
    columns = {column.name: column for column in _columns(table)}
    more = {"job_runs": {"run"}, "audit": {"plan"}}.get(table.__tablename__, set())
    if not isinstance(row, dict) or row.keys() != columns.keys() | more:
        raise ValueError(f"a row of {table.__tablename__} has other columns than it should")
    values = {name: _value(column, row[name]) for name, column in columns.items()}
    if table is PolicyRow:
        check_safetensors(values["weights"], values["name"])
    return values | {name: row[name] for name in more}


def _value(column: Any, value: Any) -> Any:
    if value is None:
        if not column.nullable:
            raise ValueError(f"{column.name} is missing")
        return None
    kind = column.type
    if isinstance(kind, UTCDateTime):
        return datetime.fromisoformat(value)
    if isinstance(kind, LargeBinary):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{column.name} is not base64") from error
    if isinstance(kind, JSON):
        return value
    expected: tuple[type, ...] = (str,)
    if isinstance(kind, Boolean):
        expected = (bool,)
    elif isinstance(kind, Double):
        expected = (float, int)
    elif isinstance(kind, type(BigInt)):
        expected = (int,)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        raise ValueError(f"{column.name} is {value!r}")
    return value


def _numbered(
    session: Session, rows: list[dict[str, Any]], table: Any, name: str, column: str
) -> list[dict[str, Any]]:
    """Return rows that refer to others by digest, referring to them by this database's numbers."""
    digests = {row[name] for row in rows}
    query = select(table.digest, table.id).where(table.digest.in_(digests))
    numbers = {row.digest: row.id for row in session.execute(query)}
    if missing := digests - numbers.keys():
        raise StoreError(f"the file refers to {len(missing)} rows that it does not hold; export it again")
    kept = [{key: value for key, value in row.items() if key != name} for row in rows]
    return [new | {column: numbers[row[name]]} for new, row in zip(kept, rows, strict=True)]


def _of_plans_here(session: Session, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the audit trail, those of plans with the numbers that the plans have here."""
    digests = {row["plan"] for row in rows if row["plan"] is not None}
    query = select(PlanRow.digest, PlanRow.id).where(PlanRow.digest.in_(digests))
    numbers = {row.digest: row.id for row in session.execute(query)}
    moved = []
    for row in rows:
        kept = {key: value for key, value in row.items() if key != "plan"}
        if row["plan"] in numbers:
            kept["key"] = str(numbers[row["plan"]])
        moved.append(kept)
    return moved


def _write_line(write: Callable[[str], object], value: dict[str, Any]) -> None:
    write(json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n")
