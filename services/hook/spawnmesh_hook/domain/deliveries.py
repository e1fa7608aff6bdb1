"""The delivery log: the calls of plugins and their results."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from spawnmesh_hook.domain.plugins import HookKind


class DeliveryDecision(StrEnum):
    """The decisions, by their names in the database and in metrics."""

    ALLOW = "allow"
    DENY = "deny"
    CONTINUE = "continue"
    REVISE = "revise"
    FINALIZE = "finalize"
    PROCEED = "proceed"
    REWRITE = "rewrite"
    BLOCK = "block"
    REQUIRE_APPROVAL = "require_approval"
    CHOSEN = "chosen"
    CHANGED = "changed"
    COMPACT = "compact"
    KEEP_WHOLE = "keep_whole"
    TOLD = "told"
    FAILED = "failed"
    SKIPPED = "skipped"
    DEAD = "dead"
    CAPPED = "capped"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A call of a plugin. `error` is empty, or says without content why the call failed."""

    delivery_id: str
    plugin: str
    hook: HookKind
    session_id: str
    run_id: str
    start_time: datetime
    latency: timedelta
    decision: DeliveryDecision
    error: str
    attempt: int
