"""What a line of an export holds: a row of a table as JSON, and the checks of it when it is read."""

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

from pydantic import ValidationError
from sqlalchemy import JSON, Boolean, Double, LargeBinary

from autoprec.errors import StoreError, UserError
from autoprec.store.checks import check_safetensors
from autoprec.store.columns import BigInt, UTCDateTime
from autoprec.store.models import (
    AuditRow,
    Base,
    ContextRow,
    DeviceProfileRow,
    JobRow,
    JobRunRow,
    PlanRow,
    PolicyRow,
    ProfileRow,
    RunRow,
)
from autoprec.store.schema import head_revision
from autoprec.strict_json import parse

FORMAT = "autoprec.store/1"
TABLES: tuple[type[Base], ...] = (
    ContextRow, JobRow, ProfileRow, RunRow, JobRunRow, PlanRow, PolicyRow, DeviceProfileRow, AuditRow,
)  # fmt: skip
_NOT_KEPT = frozenset({"run_id", "lease_token", "lease_until"})
_MORE: dict[type[Base], str] = {JobRunRow: "run", AuditRow: "plan"}
"""Digests that stand in a line instead of the number of the row that is referred to."""
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, EOFError, zlib.error, RecursionError)


def columns_of(table: type[Base]) -> list[Any]:
    """Return the columns that travel: all but numbers that a database gives, and what is in flight."""
    return [
        column
        for column in table.__table__.columns
        if column.name not in _NOT_KEPT
        and not (column.name == "id" and isinstance(column.type, type(BigInt)))
    ]


def read_rows(path: Path) -> Iterator[tuple[type[Base], dict[str, Any]]]:
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
    except _DAMAGE as error:
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


def to_json(value: object) -> object:
    """Return a value of a column as JSON holds it; `_value` turns it back."""
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
    columns = {column.name: column for column in columns_of(table)}
    stands = _MORE.get(table)
    if not isinstance(row, dict) or row.keys() != columns.keys() | ({stands} if stands else set()):
        raise ValueError(f"a row of {table.__tablename__} has other columns than it should")
    values = {name: _value(column, row[name]) for name, column in columns.items()}
    if table is PolicyRow:
        check_safetensors(values["weights"], values["name"])
    _check_record(table, values)
    if stands:
        if not isinstance(row[stands], str) and not (table is AuditRow and row[stands] is None):
            raise ValueError(f"{stands} is {row[stands]!r}")
        values[stands] = row[stands]
    return values


def _check_record(table: type[Base], values: dict[str, Any]) -> None:
    """Check that the store can read a row again: one that it cannot would be in the way of all others.

    Raises:
        ValueError: It cannot.
    """
    if table in (ProfileRow, JobRunRow):  # they have no record
        return
    number = {"id": 0} if "id" in table.__table__.columns and "id" not in values else {}
    row: Any = table(**values, **number)
    try:
        row.record()
        if table is PlanRow:
            parse(
                values["plan"]
            )  # what it says is judged by who reads it, as in the store that it comes from
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except UserError as error:
        raise ValueError(str(error)) from error


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
    whole, number = isinstance(kind, type(BigInt)), isinstance(kind, Double)
    expected: tuple[type, ...] = (str,)
    if isinstance(kind, Boolean):
        expected = (bool,)
    elif whole or number:
        expected = (int,) if whole else (float, int)
    fits = isinstance(value, expected) and (bool in expected or not isinstance(value, bool))
    if not fits:
        raise ValueError(f"{column.name} is {value!r}")
    if whole and not -(2**63) <= value < 2**63:
        raise ValueError(f"{column.name} has more than 64 bits")
    return float(value) if number else value


def write_line(write: Callable[[str], object], value: dict[str, Any]) -> None:
    """Write a line of the file."""
    write(json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n")
