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
from autoprec.store.checks import check_safetensors, checked_json, digest_of, one_of
from autoprec.store.database import Database
from autoprec.store.models import ContextRow, JobRow, PlanRow, PolicyRow
from autoprec.store.records import PolicyEntry, StoredPlan, StoredPolicy, utc_now

Role = Literal["best", "front", "lossless"]
Objective = Literal["latency", "throughput", "memory"]


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
        }

        def body(session: Session) -> int:
            self._db.get(session, JobRow, job_id)
            self._db.get(session, ContextRow, context_key)
            self._db.insert_new(session, PlanRow, values, "digest")
            return session.scalars(select(PlanRow.id).where(PlanRow.digest == digest)).one()

        return self._db.write(body)

    def plans(
        self,
        *,
        job_id: str | None = None,
        context_key: str | None = None,
        role: Role | None = None,
        limit: int | None = 100,
    ) -> list[StoredPlan]:
        """Return plans that match everything given, the newest first."""
        query = select(PlanRow).order_by(PlanRow.id.desc()).limit(limit)
        if job_id is not None:
            query = query.where(PlanRow.job_id == job_id)
        if context_key is not None:
            query = query.where(PlanRow.context_key == context_key)
        if role is not None:
            query = query.where(PlanRow.role == one_of("role", role, Role))
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])

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
    ) -> StoredPlan | None:
        """Return the best stored plan that matches everything given, or `None`.

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
        """
        equal = {
            ContextRow.fingerprint: fingerprint,
            ContextRow.architecture: architecture,
            ContextRow.device_name: device_name,
            ContextRow.threads: threads,
            ContextRow.runtime: runtime,
            ContextRow.purpose: objective if objective in ("latency", "throughput") else None,
            JobRow.workload: workload,
        }
        query = (
            select(PlanRow)
            .join(ContextRow, ContextRow.key == PlanRow.context_key)
            .join(JobRow, JobRow.id == PlanRow.job_id)
            .where(*(column == value for column, value in equal.items() if value is not None))
        )
        if max_quality_drop is not None:
            query = query.where(PlanRow.quality_drop <= max_quality_drop)
        if max_bytes is not None:
            query = query.where(PlanRow.plan_bytes <= max_bytes)
        if role is not None:
            query = query.where(PlanRow.role == one_of("role", role, Role))
        if objective is not None:
            one_of("objective", objective, Objective)
        order = PlanRow.plan_bytes.asc() if objective == "memory" else PlanRow.speedup.desc()
        query = query.order_by(order, PlanRow.quality_drop, PlanRow.id.desc())

        def body(session: Session) -> StoredPlan | None:
            for row in session.scalars(query):
                evidence = json.loads(row.plan)["evidence"]
                if metric in (None, evidence["quality"]["metric"]) and (
                    shapes is None or list(shapes) == evidence["shapes"]
                ):
                    return row.record()
            return None

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
