"""The store's part for what came out of jobs: plans and policies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from autoprec.errors import StoreError
from autoprec.plan import Plan
from autoprec.store.audit import audit_values
from autoprec.store.checks import check_safetensors, checked_json, digest_of, one_of
from autoprec.store.database import Database
from autoprec.store.models import AuditRow, ContextRow, JobRow, PlanRow, PolicyRow
from autoprec.store.records import PlanState, PolicyEntry, StoredPlan, StoredPolicy, utc_now

Role = Literal["best", "front", "lossless"]
Objective = Literal["latency", "throughput", "memory"]

_OF_CONTEXT = ("fingerprint", "architecture", "device_name", "runtime", "threads", "purpose")
"""What is copied from a plan's context, so that one index answers a query."""


class PlanStore:
    """Plans with their evidence, and trained policies."""

    _db: Database

    def save_plan(self, job_id: str, context_key: str, role: Role, plan: Plan) -> int:
        """Keep a plan with its evidence. Keeping the same plan in the same role again changes nothing.

        Returns:
            The plan's id.

        Raises:
            StoreError: The plan has no evidence, the role is unknown, or there is no such job or context.
        """
        if plan.evidence is None:
            raise StoreError(f"plan {plan.key} has no evidence; measure it before it is stored")
        text = plan.to_json()
        digest = digest_of(job_id, context_key, one_of("role", role, Role), text)
        values = {
            "digest": digest,
            "job_id": job_id,
            "context_key": context_key,
            "plan_key": plan.key,
            "role": role,
            "plan": text,
            "speedup": plan.evidence.speedup.value,
            "plan_bytes": plan.evidence.plan_bytes,
            "quality_drop": plan.evidence.quality.drop,
            "created_at": utc_now(),
            "state": "candidate",
            "objective": plan.evidence.objective,
            "metric": plan.evidence.quality.metric,
            "shapes_key": shapes_key(plan.evidence.shapes),
        }

        def body(session: Session) -> int:
            job, context = (
                self._db.get(session, JobRow, job_id),
                self._db.get(session, ContextRow, context_key),
            )
            copied = {name: getattr(context, name) for name in _OF_CONTEXT} | {"workload": job.workload}
            self._db.insert_new(session, PlanRow, values | copied, "digest")
            plan_id = session.scalars(select(PlanRow.id).where(PlanRow.digest == digest)).one()
            event = audit_values("plan", str(plan_id), who=job.owner or f"job {job_id}", what="state")
            event |= {"after": "candidate", "token": f"plan {digest}"}
            self._db.insert_new(session, AuditRow, event, "token")
            return plan_id

        return self._db.write(body)

    def plans(
        self,
        *,
        job_id: str | None = None,
        context_key: str | None = None,
        role: Role | None = None,
        state: PlanState | None = None,
        workload: str | None = None,
        architecture: str | None = None,
        fingerprint: str | None = None,
        device_name: str | None = None,
        runtime: str | None = None,
        objective: Objective | None = None,
        before: int | None = None,
        limit: int | None = 100,
    ) -> list[StoredPlan]:
        """Return plans that match everything given, the newest first; `before` is the id of a plan."""
        equal = {
            PlanRow.job_id: job_id,
            PlanRow.context_key: context_key,
            PlanRow.role: None if role is None else one_of("role", role, Role),
            PlanRow.state: None if state is None else one_of("state", state, PlanState),
            PlanRow.workload: workload,
            PlanRow.architecture: architecture,
            PlanRow.fingerprint: fingerprint,
            PlanRow.device_name: device_name,
            PlanRow.runtime: runtime,
            PlanRow.objective: None if objective is None else one_of("objective", objective, Objective),
        }
        query = (
            select(PlanRow)
            .where(*(column == value for column, value in equal.items() if value is not None))
            .order_by(PlanRow.id.desc())
            .limit(limit)
        )
        if before is not None:
            query = query.where(PlanRow.id < before)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def plan(self, plan_id: int) -> StoredPlan:
        """Return a plan.

        Raises:
            StoreError: There is none with this id.
        """
        return self._db.read(lambda session: self._db.get(session, PlanRow, plan_id).record())

    def best_plan(
        self,
        *,
        fingerprint: str | None = None,
        architecture: str | None = None,
        workload: str | None = None,
        device_name: str | None = None,
        threads: int | None = None,
        runtime: str | None = None,
        metric: str | None = None,
        shapes: Sequence[str] | None = None,
        objective: Objective | None = None,
        max_quality_drop: float | None = None,
        max_bytes: int | None = None,
        role: Role | None = None,
        state: PlanState | None = None,
    ) -> StoredPlan | None:
        """Return the best stored plan that matches everything given and is not retired, or `None`.

        The best is the one with the largest speedup, and for the objective `memory` the one that holds
        the fewest bytes; of equals the one that loses less quality, then the newest.

        Args:
            fingerprint: Of weights, quality code, data and shapes.
            architecture: Of the model's structure; a plan fits every model of its architecture.
            workload: Reference of the workload, as its job was given it.
            device_name: Where it was measured.
            threads: How many threads it was measured with.
            runtime: What executed it.
            metric: What quality meant: drops of different metrics cannot be compared.
            shapes: The inputs that were timed, in words.
            objective: `latency` and `throughput` leave only plans that were timed on such inputs.
            max_quality_drop: Largest absolute drop, on the evidence.
            max_bytes: Most bytes held, on the evidence.
            role: What the plan was kept as. Without it and without a limit on quality, the best is as bad as
                a front goes.
            state: Where it stands in its life cycle.
        """
        equal = {
            PlanRow.fingerprint: fingerprint,
            PlanRow.architecture: architecture,
            PlanRow.device_name: device_name,
            PlanRow.threads: threads,
            PlanRow.runtime: runtime,
            PlanRow.purpose: objective if objective in ("latency", "throughput") else None,
            PlanRow.workload: workload,
            PlanRow.metric: metric,
            PlanRow.shapes_key: None if shapes is None else shapes_key(shapes),
            PlanRow.state: None if state is None else one_of("state", state, PlanState),
            PlanRow.role: None if role is None else one_of("role", role, Role),
        }
        if objective is not None:
            one_of("objective", objective, Objective)
        order = PlanRow.plan_bytes.asc() if objective == "memory" else PlanRow.speedup.desc()
        query = (
            select(PlanRow)
            .where(
                PlanRow.state != "retired",
                *(column == value for column, value in equal.items() if value is not None),
            )
            .order_by(order, PlanRow.quality_drop, PlanRow.id.desc())
            .limit(1)
        )
        if max_quality_drop is not None:
            query = query.where(PlanRow.quality_drop <= max_quality_drop)
        if max_bytes is not None:
            query = query.where(PlanRow.plan_bytes <= max_bytes)

        def body(session: Session) -> StoredPlan | None:
            row = session.scalar(query)
            return None if row is None else row.record()

        return self._db.read(body)

    def save_policy(
        self, name: str, meta: Mapping[str, Any], weights: bytes, *, replace: bool = False
    ) -> int:
        """Keep a trained policy. Keeping the same one again changes nothing.

        Args:
            name: For people; several policies may have the same.
            meta: JSON.
            weights: The bytes of a safetensors file.
            replace: Remove the others of this name, in the same transaction.

        Returns:
            The policy's id.

        Raises:
            StoreError: The weights are not safetensors, or `meta` is not JSON.
        """
        check_safetensors(weights, name)
        checked = checked_json(meta, f"meta of policy {name!r}")
        digest = digest_of(name, json.dumps(checked, sort_keys=True), hashlib.sha256(weights).hexdigest())
        values = {
            "digest": digest,
            "name": name,
            "meta": checked,
            "weights": weights,
            "created_at": utc_now(),
        }

        def body(session: Session) -> int:
            self._db.insert_new(session, PolicyRow, values, "digest")
            number = session.scalars(select(PolicyRow.id).where(PolicyRow.digest == digest)).one()
            if replace:
                session.execute(delete(PolicyRow).where(PolicyRow.name == name, PolicyRow.id != number))
            return number

        return self._db.write(body)

    def policy_entries(self) -> list[PolicyEntry]:
        """Return what there is to know of all policies but their weights, the newest first."""
        names = tuple(PolicyEntry.model_fields)
        query = select(*(getattr(PolicyRow, name) for name in names)).order_by(PolicyRow.id.desc())
        return self._db.read(
            lambda session: [PolicyEntry(**row) for row in session.execute(query).mappings()]
        )

    def policies(self, *, name: str | None = None, limit: int | None = 100) -> list[StoredPolicy]:
        """Return policies, the newest first."""
        query = select(PolicyRow).order_by(PolicyRow.id.desc()).limit(limit)
        if name is not None:
            query = query.where(PolicyRow.name == name)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

    def policy(self, policy_id: int) -> StoredPolicy:
        """Return a policy.

        Raises:
            StoreError: There is none with this id.
        """
        return self._db.read(lambda session: self._db.get(session, PolicyRow, policy_id).record())

    def forget_policies(self, name: str) -> None:
        """Remove every policy of a name; where there is none, nothing happens."""
        self._db.write(lambda session: session.execute(delete(PolicyRow).where(PolicyRow.name == name)))


def shapes_key(shapes: Sequence[str]) -> str:
    """Return a digest of the inputs that were timed, by which plans of the same ones are found."""
    return digest_of(*shapes)
