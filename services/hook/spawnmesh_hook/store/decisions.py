"""Decisions about drafts: one for each draft, even if several calls ask for it at the same time."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.decisions import (
    MAX_REVISION_COUNT,
    CappedRevision,
    Decision,
    FinalizeAnswer,
    PluginDecision,
    RevisionCap,
)

CLAIM_ENDED_CHANNEL = "hook_decisions"

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class DraftKey:
    """Identifies a draft within its run, so that a repeated call gets the same decision."""

    tenant_id: str
    run_id: str
    request_id: str

    @property
    def topic(self) -> str:
        """The payload of the notification that the claim of this draft ended.

        It is a hash: notifications are short and readable by every listener.
        """
        parts = f"{self.tenant_id}\n{self.run_id}\n{self.request_id}"
        return hashlib.sha256(parts.encode()).hexdigest()


async def claim_draft(connection: Connection, draft: DraftKey, claim_id: UUID, lease: timedelta) -> bool:
    """Claim the draft for one call, which then calls the plugins. Return whether that succeeded.

    It fails if the draft is decided, or claimed by a call whose lease has not expired.
    """
    parameters = {**_key(draft), "claim_id": claim_id, "lease": lease}
    return await (await connection.execute(_SQL["claim_draft"], parameters)).fetchone() is not None


async def get_decision(connection: Connection, draft: DraftKey) -> Decision | None:
    """Return the stored decision about the draft, or None if there is none yet."""
    row = await (await connection.execute(_SQL["get_decision"], _key(draft))).fetchone()
    if row is None:
        return None
    return Decision(
        answer=FinalizeAnswer(row["answer"]),
        reason=row["reason"],
        decided_by=tuple(row["decided_by"]),
        revision_number=row["revision_number"],
        capped_revisions=tuple(
            CappedRevision(capped["plugin"], RevisionCap(capped["cap"])) for capped in row["capped_revisions"]
        ),
    )


async def is_claimed_or_decided(connection: Connection, draft: DraftKey) -> bool:
    """Return whether plugins have decided about the draft, or are being called about it."""
    cursor = await connection.execute(_SQL["is_claimed_or_decided"], _key(draft))
    return await cursor.fetchone() is not None


async def lock_claim(connection: Connection, draft: DraftKey, claim_id: UUID) -> bool:
    """Lock the claim until the transaction ends. Return False if another call has taken it over."""
    cursor = await connection.execute(_SQL["lock_claim"], {**_key(draft), "claim_id": claim_id})
    return await cursor.fetchone() is not None


async def store_decision(connection: Connection, draft: DraftKey, claim_id: UUID, decision: Decision) -> None:
    """Store the decision. The transaction holds the lock of the claim."""
    await connection.execute(
        _SQL["store_decision"],
        {
            **_key(draft),
            "claim_id": claim_id,
            "answer": decision.answer.value,
            "reason": decision.reason,
            "decided_by": list(decision.decided_by),
            "revision_number": decision.revision_number,
            "capped_revisions": Jsonb([asdict(capped) for capped in decision.capped_revisions]),
        },
    )


async def release_claim(connection: Connection, draft: DraftKey, claim_id: UUID) -> None:
    """Delete the claim. A decision that was stored stays."""
    await connection.execute(_SQL["release_claim"], {**_key(draft), "claim_id": claim_id})


async def notify_claim_ended(connection: Connection, draft: DraftKey) -> None:
    """Wake the calls that wait for the draft's decision when the transaction commits."""
    parameters = {"channel": CLAIM_ENDED_CHANNEL, "topic": draft.topic}
    await connection.execute(_SQL["notify_claim_ended"], parameters)


async def count_revision(connection: Connection, draft: DraftKey) -> int | None:
    """Count one more revision of the run and return its number, from 1.

    Return None, and count nothing, if the run has had its MAX_REVISION_COUNT revisions.
    """
    parameters = {**_key(draft), "max_revision_count": MAX_REVISION_COUNT}
    row = await (await connection.execute(_SQL["count_revision"], parameters)).fetchone()
    return None if row is None else int(row["revision_count"])


async def get_revision_count(connection: Connection, draft: DraftKey) -> int:
    """Return how many revisions the run has had."""
    row = await (await connection.execute(_SQL["get_revision_count"], _key(draft))).fetchone()
    return 0 if row is None else int(row["revision_count"])


async def lock_run_revisions(connection: Connection, draft: DraftKey) -> None:
    """Serialize the decisions about the run until the transaction ends."""
    await connection.execute(_SQL["lock_run_revisions"], _key(draft))


async def list_key_attempts(connection: Connection, draft: DraftKey) -> dict[tuple[str, str], int]:
    """Return how many revisions of the run were granted, by plugin and objection key."""
    cursor = await connection.execute(_SQL["list_key_attempts"], _key(draft))
    return {(row["plugin"], row["objection_key"]): row["attempt_count"] for row in await cursor.fetchall()}


async def count_key_attempt(connection: Connection, draft: DraftKey, revise: PluginDecision) -> None:
    """Count a granted revision for the objection key of the revise."""
    parameters = {**_key(draft), "plugin": revise.plugin, "objection_key": revise.objection_key}
    await connection.execute(_SQL["count_key_attempt"], parameters)


async def find_exhausted_keys(
    connection: Connection, draft: DraftKey, plugin_decisions: Sequence[PluginDecision]
) -> set[tuple[str, str]]:
    """Return the plugin and objection key of each revise that has no attempt left in the run.

    If there are keys, this serializes the decisions about the run until the transaction ends.
    """
    keyed = [decision for decision in plugin_decisions if decision.objection_key]
    if not keyed:
        return set()
    await lock_run_revisions(connection, draft)
    attempts = await list_key_attempts(connection, draft)
    keys = {(decision.plugin, decision.objection_key): decision.max_attempts for decision in keyed}
    return {key for key, max_attempts in keys.items() if attempts.get(key, 0) >= max_attempts}


def _key(draft: DraftKey) -> dict[str, Any]:
    return {"tenant_id": draft.tenant_id, "run_id": draft.run_id, "request_id": draft.request_id}
