"""The store's part for who changed what, when: an audit trail, and the life cycle of plans."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.store.checks import digest_of, one_of
from autoprec.store.database import Database
from autoprec.store.models import AuditRow, PlanRow
from autoprec.store.records import AuditEvent, PlanState, StoredPlan, utc_now

Subject = Literal["job", "plan", "token"]
TRANSITIONS: dict[str, tuple[PlanState, ...]] = {
    "candidate": ("verified", "deployed", "retired"),
    "verified": ("candidate", "deployed", "retired"),
    "deployed": ("verified", "retired"),
    "retired": ("candidate",),
}
"""What a plan may become."""
PLACE = ("architecture", "device_name", "runtime", "objective")
"""Of plans that agree in these at most one is deployed."""


class AuditStore:
    """The audit trail, and the states of plans."""

    _db: Database

    def audit(self, subject: Subject, key: str, *, who: str, what: str, note: str = "") -> None:
        """Note what somebody did.

        Args:
            subject: To what kind of thing.
            key: Which one: a job's id, a plan's, a token's name.
            who: Who did it, for people.
            what: What was done, in a word.
            note: Why.
        """
        values = audit_values(one_of("subject", subject, Subject), key, who=who, what=what, note=note)
        self._db.write(lambda session: self._db.insert_new(session, AuditRow, values, "token"))

    def audit_events(
        self,
        *,
        subject: Subject | None = None,
        key: str | None = None,
        before: int | None = None,
        limit: int | None = 100,
    ) -> list[AuditEvent]:
        """Return what was done, the last first; `before` is the id of an event, for the next page."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if subject is not None:
            query = query.where(AuditRow.subject == one_of("subject", subject, Subject))
        if key is not None:
            query = query.where(AuditRow.key == key)
        if before is not None:
            query = query.where(AuditRow.id < before)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def plan_events(self, plan_id: int) -> list[AuditEvent]:
        """Return how a plan came to its state, the first event first.

        Raises:
            StoreError: There is no such plan.
        """
        query = (
            select(AuditRow)
            .where(AuditRow.subject == "plan", AuditRow.key == str(plan_id))
            .order_by(AuditRow.id)
        )

        def body(session: Session) -> list[AuditEvent]:
            self._db.get(session, PlanRow, plan_id)
            return [row.record() for row in session.scalars(query)]

        return self._db.read(body)

    @staticmethod
    def may_become(state: PlanState, wanted: PlanState) -> bool:
        """Say whether a plan in one state may be moved to another, or is there."""
        return wanted == state or wanted in TRANSITIONS[state]

    def set_plan_state(self, plan_id: int, state: PlanState, *, who: str, note: str = "") -> StoredPlan:
        """Move a plan along its life cycle, and note who did; a plan that is there already stays.

        At most one plan is deployed for an architecture, device, runtime and objective: the former one goes
        back to `verified`, which is noted too.

        Raises:
            StoreError: There is no such plan, or its state does not allow it; says which follow.
        """
        wanted = one_of("state", state, PlanState)
        token = uuid.uuid4().hex

        def body(session: Session) -> StoredPlan:
            row = self._db.get(session, PlanRow, plan_id, for_update=True)
            if row.state != wanted:
                if wanted not in TRANSITIONS[row.state]:
                    allowed = " or ".join(TRANSITIONS[row.state])
                    raise StoreError(
                        f"plan {plan_id} is {row.state} and cannot become {wanted}; it can become {allowed}"
                    )
                if wanted == "deployed":
                    self._take_turns(session, row)
                    for other in session.scalars(_deployed_like(row)).all():
                        replaced = f"plan {plan_id} was deployed in its place"
                        self._move(session, other, "verified", who, replaced, f"{token}-{other.id}")
                self._move(session, row, wanted, who, note, token)
            return row.record()

        return self._db.write(body)

    @staticmethod
    def _take_turns(session: Session, row: PlanRow) -> None:
        """Wait until nobody else deploys a plan in the same place; SQLite has one writer at a time anyway.

        Rows cannot be locked for that: where no plan is deployed yet there is none that both would lock.
        """
        if session.get_bind().dialect.name == "postgresql":
            place = digest_of("deployed", *(getattr(row, name) for name in PLACE))
            key = int(place[:16], 16) - 2**63  # 64 bits with a sign
            session.execute(select(func.pg_advisory_xact_lock(key)))

    def _move(self, session: Session, row: PlanRow, state: str, who: str, note: str, token: str) -> None:
        values = audit_values("plan", str(row.id), who=who, what="state", note=note)
        values |= {"before": row.state, "after": state, "token": token}
        self._db.insert_new(session, AuditRow, values, "token")
        session.execute(update(PlanRow).where(PlanRow.id == row.id).values(state=state))
        session.refresh(row)


def audit_values(subject: str, key: str, *, who: str, what: str, note: str = "") -> dict[str, Any]:
    """Return a row of the audit trail; its token makes it the same when it is written again."""
    return {
        "token": uuid.uuid4().hex,
        "subject": subject,
        "key": key,
        "at": utc_now(),
        "who": who,
        "what": what,
        "before": None,
        "after": None,
        "note": note,
    }


def _deployed_like(row: PlanRow) -> Any:
    return (
        select(PlanRow)
        .where(
            PlanRow.state == "deployed",
            PlanRow.id != row.id,
            *(getattr(PlanRow, name) == getattr(row, name) for name in PLACE),
        )
        .with_for_update()
    )
