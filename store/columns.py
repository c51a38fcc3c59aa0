"""Kinds of columns that SQLite and PostgreSQL keep alike."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import BigInteger, DateTime, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from autoprec.errors import StoreError

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits everywhere; SQLite counts up by itself only in a column declared INTEGER."""


class Name(TypeDecorator[str]):
    """Text that is looked up: kept exactly, so what a database cannot keep is refused."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Refuse NUL, which PostgreSQL cannot keep, and lone surrogates, which UTF-8 cannot."""
        if value is not None and value != _storable(value):
            raise StoreError(
                f"{value!r} cannot be kept in a store: it holds a NUL character or half of a surrogate pair; "
                "use another name"
            )
        return value


class Prose(TypeDecorator[str]):
    """Text for people (a reason, a message). A run is never lost because its reason is odd."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace NUL by U+2400 and lone surrogates by a question mark."""
        return value if value is None else _storable(value)


class UTCDateTime(TypeDecorator[datetime]):
    """An instant. SQLite keeps no zone, so it gets UTC; a time without a zone is taken as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn into UTC."""
        if value is None:
            return None
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return with the zone UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _storable(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\u2400")
