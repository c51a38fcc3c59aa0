"""The store's part for tokens of the HTTP API. Only their digests are kept."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.store.checks import one_of
from autoprec.store.database import Database
from autoprec.store.models import TokenRow
from autoprec.store.records import Scope, Token, utc_now

PREFIX = "ap_"
"""How a secret begins, so that scanners for leaked secrets can know it."""
USE_KEPT = timedelta(minutes=1)
"""When a token was used is kept to this precision: not every request has to write."""


class TokenStore:
    """Tokens: 256 random bits each, so that a plain digest of them cannot be turned back."""

    _db: Database

    def create_token(self, name: str, scope: Scope) -> str:
        """Make a token and return its secret, which is never shown again.

        Args:
            name: For people; each is used once, also after the token was revoked.
            scope: `read`; `submit`, which may also submit jobs; or `admin`, which may do everything.

        Raises:
            StoreError: The name is taken or empty, or the scope is unknown.
        """
        if not name.strip():
            raise StoreError("the token's name is empty; say whose or what it is for")
        secret = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(secret)
        values = {
            "name": name,
            "digest": digest,
            "scope": one_of("scope", scope, Scope),
            "created_at": utc_now(),
        }

        def body(session: Session) -> None:
            self._db.insert_new(session, TokenRow, values, "name")
            if session.scalars(select(TokenRow.digest).where(TokenRow.name == name)).one() != digest:
                raise StoreError(f"there is a token {name!r} already; use another name")

        self._db.write(body)
        return secret

    def token(self, secret: str) -> Token | None:
        """Return the token that a secret belongs to, or `None`; a revoked one has `revoked_at`."""
        digest, now = _digest(secret), utc_now()
        row_of = select(TokenRow).where(TokenRow.digest == digest)

        def read(session: Session) -> Token | None:
            row = session.scalar(row_of)
            return None if row is None else row.record()

        found = self._db.read(read)
        if found is None or found.revoked_at is not None:
            return found
        if found.last_used_at is None or now - found.last_used_at > USE_KEPT:
            old = or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < now)
            used = update(TokenRow).where(TokenRow.digest == digest, old).values(last_used_at=now)
            self._db.write(lambda session: session.execute(used))
        return found

    def tokens(self) -> list[Token]:
        """Return every token, by name; never a secret."""
        query = select(TokenRow).order_by(TokenRow.name)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def revoke_token(self, name: str) -> None:
        """Make a token worthless; one that is revoked stays so.

        Raises:
            StoreError: There is none of this name.
        """
        now = utc_now()

        def body(session: Session) -> None:
            self._db.get(session, TokenRow, name)
            session.execute(
                update(TokenRow)
                .where(TokenRow.name == name, TokenRow.revoked_at.is_(None))
                .values(revoked_at=now)
            )

        self._db.write(body)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
