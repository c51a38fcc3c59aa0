"""Which policy a search starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from autoprec.agents.policy_file import Policy, PolicyError, import_policy
from autoprec.agents.pretrain import pretrained_policy
from autoprec.store.records import JOB_POLICY, PolicyEntry

if TYPE_CHECKING:
    from autoprec.store.store import Store

DEFAULT = "default"
"""Name under which the store holds the policies that jobs start from."""
TRIED = 5
"""So many of the newest are looked at."""


def origin_of(found: PolicyEntry) -> str:
    """Return where a policy of the store lies, for people."""
    return f"policy {found.id} of the store"


def starting_policy(store: Store, note: Callable[[str], None], job_id: str | None = None) -> Policy | None:
    """Return the newest policy named `DEFAULT` of the store that can be used, else the shipped one.

    A job that is resumed starts from what it has learnt itself.

    Args:
        store: The store.
        note: Told of each policy that is passed over, and why.
        job_id: The job that is to start.

    Returns:
        The policy; `None` where not even the shipped one can be used: a search then starts untrained.
    """

    def candidates() -> Iterator[Policy]:
        own = [] if job_id is None else store.policies(name=f"{JOB_POLICY}{job_id}", limit=1)
        for found in (*own, *store.policies(name=DEFAULT, limit=TRIED)):
            yield Policy(found.meta, found.weights, origin_of(found))
        yield pretrained_policy()

    try:
        for policy in candidates():
            try:
                import_policy(policy)
            except PolicyError as error:
                note(f"{policy.origin} is passed over: {error}")
            else:
                return policy
    except PolicyError as error:
        note(f"the search starts from an untrained policy: {error}")
    return None
