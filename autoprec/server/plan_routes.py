"""Plans over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from autoprec.plan import UnitPlan
from autoprec.server.access import Access
from autoprec.server.answers import MOST, from_cursor, json_of, page, tagged
from autoprec.server.problems import LIST, ONE, described
from autoprec.server.schemas import NO_NUL, PlanSummary, summary
from autoprec.store.plans import Objective
from autoprec.store.records import AuditEvent, PlanState
from autoprec.store.store import Store

PlanId = Annotated[int, Path(ge=1, lt=2**63, description="Number of the plan.")]
Text = Annotated[str | None, Query(max_length=500, pattern=NO_NUL)]
Limit = Annotated[int, Query(ge=1, le=MOST, description="Longest page.")]
Cursor = Annotated[str | None, Query(max_length=500, description="Of the `Link` of the page before.")]


class StateChange(BaseModel):
    """Where a plan is to stand.

    Attributes:
        state: Its new state.
        note: Why, for the audit trail.
    """

    state: PlanState
    note: Annotated[str, Field(max_length=2000)] = ""

    model_config = ConfigDict(extra="forbid", strict=True)


class UnitDifference(BaseModel):
    """A unit that two plans run differently.

    Attributes:
        unit: Its name.
        a: Its format in the first plan; `None` where that has no such unit.
        b: The same of the second.
        a_kernels: The implementations of its modules in the first.
        b_kernels: The same of the second.
    """

    unit: str
    a: str | None
    b: str | None
    a_kernels: list[str]
    b_kernels: list[str]


def plan_routes(store: Store, access: Access) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/plans", tags=["plans"])
    reader = [Depends(access.need("read"))]

    @router.get("", response_model=list[PlanSummary], dependencies=reader, responses=LIST,
                summary="Plans, the newest first")  # fmt: skip
    def plans(
        request: Request,
        workload: Text = None,
        architecture: Text = None,
        fingerprint: Text = None,
        device: Text = None,
        runtime: Text = None,
        objective: Objective | None = None,
        job: Text = None,
        state: PlanState | None = None,
        role: Literal["best", "front", "lossless"] | None = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        found = store.plans(
            workload=workload,
            architecture=architecture,
            fingerprint=fingerprint,
            device_name=device,
            runtime=runtime,
            objective=objective,
            job_id=job,
            state=state,
            role=role,
            before=_number(cursor),
            limit=limit,
        )
        last = str(found[-1].id) if found else None
        return page(request, PlanSummary, [summary(plan) for plan in found], limit, last)

    @router.get("/best", response_model=PlanSummary, dependencies=reader, responses=ONE,
                summary="The best plan that meets everything given, and is not retired")  # fmt: skip
    def best(
        request: Request,
        fingerprint: Text = None,
        architecture: Text = None,
        workload: Text = None,
        device: Text = None,
        runtime: Text = None,
        objective: Objective | None = None,
        state: PlanState | None = None,
        threads: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
        max_quality_drop: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
        max_bytes: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    ) -> Response:
        if not (fingerprint or architecture or workload):
            raise HTTPException(400, "name a fingerprint, an architecture or a workload")
        found = store.best_plan(
            fingerprint=fingerprint,
            architecture=architecture,
            workload=workload,
            device_name=device,
            threads=threads,
            runtime=runtime,
            objective=objective,
            max_quality_drop=max_quality_drop,
            max_bytes=max_bytes,
            role="best" if max_quality_drop is None else None,
            state=state,
        )
        if found is None:
            raise HTTPException(404, "no plan in the store meets all of it")
        location = {"Content-Location": f"/api/v1/plans/{found.id}"}
        return tagged(request, json_of(PlanSummary, summary(found)), location)

    @router.get("/diff", response_model=list[UnitDifference], dependencies=reader,
                responses=ONE, summary="Units that two plans run differently")  # fmt: skip
    def diff(
        request: Request,
        a: Annotated[int, Query(ge=1, lt=2**63)],
        b: Annotated[int, Query(ge=1, lt=2**63)],
    ) -> Response:
        first, second = (_units(store, number) for number in (a, b))
        names = dict.fromkeys([*first, *second])
        differing = [
            UnitDifference(
                unit=name,
                a=first[name].format if name in first else None,
                b=second[name].format if name in second else None,
                a_kernels=_kernels(first.get(name)),
                b_kernels=_kernels(second.get(name)),
            )
            for name in names
            if name not in first or name not in second or first[name] != second[name]
        ]
        return tagged(request, json_of(list[UnitDifference], differing))

    @router.get("/{plan}", response_model=PlanSummary, dependencies=reader, responses=ONE,
                summary="One plan, without its units")  # fmt: skip
    def one(request: Request, plan: PlanId) -> Response:
        return tagged(request, json_of(PlanSummary, summary(store.plan(plan))))

    @router.get("/{plan}/plan.json", response_model=dict[str, Any], dependencies=reader,
                responses=ONE,
                summary="The plan as trainers load it, byte for byte as it was stored")  # fmt: skip
    def plan_json(request: Request, plan: PlanId) -> Response:
        return tagged(request, store.plan(plan).plan.encode())

    @router.get("/{plan}/events", response_model=list[AuditEvent], dependencies=reader,
                responses=ONE, summary="How the plan came to its state")  # fmt: skip
    def events(request: Request, plan: PlanId) -> Response:
        return tagged(request, json_of(list[AuditEvent], store.plan_events(plan)))

    @router.post("/{plan}/state", response_model=PlanSummary, responses=described(404, 409, 413, 422),
                 summary="Move a plan along its life cycle (scope admin)")  # fmt: skip
    def move(plan: PlanId, change: StateChange, who: str = Depends(access.need("admin"))) -> PlanSummary:
        now = store.plan(plan)
        if not store.may_become(now.state, change.state):
            raise HTTPException(409, f"plan {plan} is {now.state} and cannot become {change.state}")
        return summary(store.set_plan_state(plan, change.state, who=who, note=change.note))

    return router


def _number(cursor: str | None) -> int | None:
    key = from_cursor(cursor)
    if key is None:
        return None
    if not (key.isascii() and key.isdigit()) or int(key) >= 2**63:
        raise HTTPException(400, "the cursor is of another list")
    return int(key)


def _units(store: Store, number: int) -> dict[str, UnitPlan]:
    plan = store.plan(number).read()
    return {unit.name: unit for unit in plan.units}


def _kernels(unit: UnitPlan | None) -> list[str]:
    return [] if unit is None else [module.implementation for module in unit.modules]
