"""The decisions of the delivery log: the result of a call of a plugin."""

from enum import StrEnum


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
