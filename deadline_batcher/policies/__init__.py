"""The batching rules. `takt` is ours; docs/batching.md describes each, with its source."""

from __future__ import annotations

from collections.abc import Callable

from deadline_batcher.plan import Plan
from deadline_batcher.policies.clockwork import Clockwork
from deadline_batcher.policies.deferred import Deferred
from deadline_batcher.policies.eager import Eager
from deadline_batcher.policies.nexus import Nexus
from deadline_batcher.policies.policy import Policy
from deadline_batcher.policies.slack import Slack
from deadline_batcher.policies.takt import Takt
from deadline_batcher.policies.triton import Triton
from deadline_batcher.policies.window import Window

POLICIES: dict[str, Callable[[Plan], Policy]] = {
    "takt": Takt,
    "eager": Eager,
    "window": Window,
    "slack": Slack,
    "deferred": Deferred,
    "clockwork": Clockwork,
    "nexus": Nexus,
    "triton": Triton,
}


def make_policy(plan: Plan) -> Policy:
    """The rule that the plan names. Raises ValueError for a name that is none."""
    if plan.policy.name not in POLICIES:
        raise ValueError(f"no policy {plan.policy.name!r}; there are: {', '.join(POLICIES)}")
    return POLICIES[plan.policy.name](plan)
