"""The store's part for moving what it holds into another: one file, the same for SQLite and PostgreSQL.

The file is gzip of JSON lines: a head, then a line for each row, parents before what refers to them. Numbers
that a database gives are left out; rows are known by their digests. Tokens, and what is in flight, stay.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, case, cast, select, text, tuple_
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.files import put_in_one_step
from autoprec.store.audit import PLACE, audit_values
from autoprec.store.database import Database
from autoprec.store.models import AuditRow, Base, ContextRow, JobRow, JobRunRow, PlanRow, RunRow
from autoprec.store.schema import head_revision
from autoprec.store.transfer_rows import FORMAT, TABLES, columns_of, read_rows, to_json, write_line

_BATCH = 500
"""Rows that are held in memory at once."""


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
                    write_line(file.write, {"format": FORMAT, "schema": head_revision()})
                    for table in TABLES:
                        for row in _rows(session, table):
                            write_line(file.write, {"table": table.__tablename__, "row": row})
                            counts[table.__tablename__] += 1
            except OSError as error:
                raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
            return counts

        return self._db.read(body)

    def import_from(self, path: Path) -> dict[str, int]:
        """Take in everything that a file holds and this store does not; return the rows read of each table.

        All of it or nothing: it is one transaction. What is here already stays as it is. So a plan that is
        deployed in the file comes as verified where another is deployed here, and a job comes without its
        idempotency key where another job has that here.

        Raises:
            StoreError: The file cannot be read, is damaged (names the line), is of another schema, or holds
                a job that is another one than the job of the same id here.
        """

        def body(session: Session) -> dict[str, int]:
            counts = dict.fromkeys((table.__tablename__ for table in TABLES), 0)
            batch: list[dict[str, Any]] = []
            of: type[Base] = TABLES[0]
            replaced: list[str] = []
            for table, row in read_rows(path):
                if table is not of or len(batch) >= _BATCH:
                    self._insert(session, of, batch, replaced)
                    batch = []
                if TABLES.index(table) < TABLES.index(of):
                    raise StoreError(f"{str(path)!r} is damaged: rows of {table.__tablename__} come too late")
                of = table
                batch.append(row)
                counts[table.__tablename__] += 1
            self._insert(session, of, batch, replaced)
            self._note(session, replaced)
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

    def _insert(
        self, session: Session, table: type[Base], rows: list[dict[str, Any]], replaced: list[str]
    ) -> None:
        """Insert rows that are not there yet, with the numbers that this database gave what they refer to.

        `replaced` gets the digests of plans that are deployed in the file and cannot be here.
        """
        if not rows:
            return
        if table is JobRow:
            _fit_jobs(session, rows)
        if table is JobRunRow:
            rows = _numbered(session, rows, RunRow, "run", "run_id")
        if table is PlanRow:
            replaced += _fit_plans(session, rows)
        if table is AuditRow:
            rows = _numbered(session, [row for row in rows if row["plan"]], PlanRow, "plan", "key") + [
                {name: value for name, value in row.items() if name != "plan"}
                for row in rows
                if row["plan"] is None and row["subject"] != "plan"  # of a plan that never was
            ]
        for name, key in (("context_key", ContextRow.key), ("job_id", JobRow.id)):
            named = {row[name] for row in rows if row.get(name) is not None}
            _refuse_missing(named, set(session.scalars(select(key).where(key.in_(named)))))
        self._db.insert_all_new(session, table, rows)

    def _note(self, session: Session, replaced: list[str]) -> None:
        """Tell in the audit trail of plans that they were deployed where they come from."""
        for digest in replaced:
            plan_id = session.scalars(select(PlanRow.id).where(PlanRow.digest == digest)).one()
            note = "another plan is deployed here"
            values = audit_values("plan", str(plan_id), who="import", what="state", note=note)
            values |= {"before": "deployed", "after": "verified", "token": f"import {digest}"}
            self._db.insert_new(session, AuditRow, values, "token")


def _rows(session: Session, table: type[Base]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as JSON holds them, in the order in which they were made."""
    columns = columns_of(table)
    keys: Any = table.__table__.primary_key
    query: Any = select(*columns).order_by(*keys)
    if table is JobRunRow:
        query = query.add_columns(RunRow.digest.label("run")).join(RunRow, RunRow.id == JobRunRow.run_id)
    if table is AuditRow:
        # Of other subjects the key need not be a number, and PostgreSQL would refuse to read it as one.
        named = PlanRow.id == case((AuditRow.subject == "plan", cast(AuditRow.key, BigInteger)))
        query = query.add_columns(PlanRow.digest.label("plan")).join(PlanRow, named, isouter=True)
    for row in session.execute(query.execution_options(yield_per=_BATCH)).mappings():
        yield {name: to_json(value) for name, value in row.items()}


def _numbered(
    session: Session, rows: list[dict[str, Any]], table: Any, name: str, column: str
) -> list[dict[str, Any]]:
    """Return rows that refer to others by digest, referring to them by this database's numbers."""
    digests = {row[name] for row in rows}
    query = select(table.digest, table.id).where(table.digest.in_(digests))
    numbers = {row.digest: row.id for row in session.execute(query)}
    _refuse_missing(digests, numbers.keys())
    kept = [{key: value for key, value in row.items() if key != name} for row in rows]
    kind = str if column == "key" else int
    return [new | {column: kind(numbers[row[name]])} for new, row in zip(kept, rows, strict=True)]


def _refuse_missing(named: Set[Any], found: Set[Any]) -> None:
    if missing := named - found:
        raise StoreError(f"the file refers to {len(missing)} rows that it does not hold; export it again")


def _fit_jobs(session: Session, rows: list[dict[str, Any]]) -> None:
    """Take from jobs the idempotency keys that other jobs have here.

    Raises:
        StoreError: A job here has the id of another one; what refers to it would be mixed up.
    """
    ids = {row["id"]: row["created_at"] for row in rows}
    for job_id, created_at in session.execute(select(JobRow.id, JobRow.created_at).where(JobRow.id.in_(ids))):
        if created_at != ids[job_id]:
            raise StoreError(f"job {job_id!r} of the file is another one than the job of this id here")
    keys = {row["idempotency_key"] for row in rows} - {None}
    query = select(JobRow.idempotency_key, JobRow.id).where(JobRow.idempotency_key.in_(keys))
    taken = {row.idempotency_key: row.id for row in session.execute(query)}
    for row in rows:
        if taken.get(row["idempotency_key"], row["id"]) != row["id"]:
            row["idempotency_key"] = None


def _fit_plans(session: Session, rows: list[dict[str, Any]]) -> list[str]:
    """Make new plans `verified` that cannot be deployed beside one that is; return their digests."""
    deployed = [row for row in rows if row["state"] == "deployed"]
    digests = {row["digest"] for row in deployed}
    here = set(session.scalars(select(PlanRow.digest).where(PlanRow.digest.in_(digests))))
    columns = [getattr(PlanRow, name) for name in PLACE]
    places = {_place(row) for row in deployed}
    query = select(*columns).where(PlanRow.state == "deployed", tuple_(*columns).in_(places))
    taken = {tuple(found) for found in session.execute(query)}
    replaced = []
    for row in deployed:
        if row["digest"] in here:
            continue
        if _place(row) in taken:
            row["state"] = "verified"
            replaced.append(row["digest"])
        taken.add(_place(row))
    return replaced


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)
