"""Decisions about drafts in the database: one for each, however many ask for it at a time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT, Decision, FinalizeAnswer, Verdict

ASKING_ENDED_CHANNEL = "hook_decisions"

_SQL = load_statements("spawnmesh_hook")


@dataclass(frozen=True, slots=True)
class DraftKey:
    """Names a draft for repeats, within its run."""

    tenant_id: str
    run_id: str
    dispatch_key: str

    @property
    def topic(self) -> str:
        """What is notified when the asking about this draft ends: short, and telling nothing to those who listen."""
        parts = f"{self.tenant_id}\n{self.run_id}\n{self.dispatch_key}"
        return hashlib.sha256(parts.encode()).hexdigest()


async def claim_asking(connection: Connection, draft: DraftKey, asker: UUID, asking_for: timedelta) -> bool:
    """Whether this asker is now the one to ask the plugins: nobody was, or whoever was let the time pass."""
    cursor = await connection.execute(_SQL["claim_asking"], {**_key(draft), "asker": asker, "asking_for": asking_for})
    return await cursor.fetchone() is not None


async def get_decision(connection: Connection, draft: DraftKey) -> Decision | None:
    """The decision that is kept for the draft, if it has been made."""
    cursor = await connection.execute(_SQL["get_decision"], _key(draft))
    row = await cursor.fetchone()
    if row is None:
        return None
    return Decision(
        answer=FinalizeAnswer(row["answer"]),
        reason=row["reason"],
        decided_by=tuple(row["decided_by"]),
        revision_number=row["revision_number"],
        capped=row["capped"],
    )


async def is_asked(connection: Connection, draft: DraftKey) -> bool:
    """Whether the draft was decided by plugins, or is being."""
    cursor = await connection.execute(_SQL["is_asked"], _key(draft))
    return await cursor.fetchone() is not None


async def lock_asking(connection: Connection, draft: DraftKey, asker: UUID) -> bool:
    """Whether this asker still holds the asking; holds it for the rest of the transaction when so."""
    cursor = await connection.execute(_SQL["lock_asking"], {**_key(draft), "asker": asker})
    return await cursor.fetchone() is not None


async def decide(connection: Connection, draft: DraftKey, asker: UUID, decision: Decision) -> None:
    """Keeps the decision. The asker holds the asking."""
    await connection.execute(
        _SQL["decide"],
        {
            **_key(draft),
            "asker": asker,
            "answer": decision.answer.value,
            "reason": decision.reason,
            "decided_by": list(decision.decided_by),
            "revision_number": decision.revision_number,
            "capped": decision.capped,
        },
    )


async def give_up_asking(connection: Connection, draft: DraftKey, asker: UUID) -> None:
    """Forgets that this asker was asking; a decision that was made stays."""
    await connection.execute(_SQL["give_up_asking"], {**_key(draft), "asker": asker})


async def announce_asking_ended(connection: Connection, draft: DraftKey) -> None:
    """Wakes those who wait for the draft's decision, when the transaction commits."""
    await connection.execute(_SQL["announce_asking_ended"], {"channel": ASKING_ENDED_CHANNEL, "topic": draft.topic})


async def count_revision(connection: Connection, draft: DraftKey) -> int | None:
    """Counts one more revision of the run and returns its number, from 1; None, counting nothing, when the run has had its most."""
    cursor = await connection.execute(_SQL["count_revision"], {**_key(draft), "max_revision_count": MAX_REVISION_COUNT})
    row = await cursor.fetchone()
    return None if row is None else int(row["revision_count"])


async def spent_keys(connection: Connection, draft: DraftKey, verdicts: Sequence[Verdict]) -> set[tuple[str, str]]:
    """Of these revises, plugin and key of those that have had their attempts in the run."""
    if not any(verdict.idempotency_key for verdict in verdicts):
        return set()
    await connection.execute(_SQL["lock_run_revisions"], _key(draft))
    cursor = await connection.execute(_SQL["spent_keys"], _key(draft))
    had = {(row["plugin"], row["idempotency_key"]): row["attempt_count"] for row in await cursor.fetchall()}
    return {
        (verdict.plugin, verdict.idempotency_key)
        for verdict in verdicts
        if verdict.idempotency_key and had.get((verdict.plugin, verdict.idempotency_key), 0) >= verdict.max_attempts
    }


async def count_keys(connection: Connection, draft: DraftKey, revises: Sequence[Verdict]) -> None:
    """Counts a granted revision for the key of each revise that has one."""
    for revise in revises:
        if revise.idempotency_key:
            counted = {**_key(draft), "plugin": revise.plugin, "idempotency_key": revise.idempotency_key}
            await connection.execute(_SQL["count_key"], counted)


async def get_revision_count(connection: Connection, draft: DraftKey) -> int:
    """How many revisions the run has been asked for."""
    cursor = await connection.execute(_SQL["get_revision_count"], _key(draft))
    row = await cursor.fetchone()
    return 0 if row is None else int(row["revision_count"])


def _key(draft: DraftKey) -> dict[str, Any]:
    return {"tenant_id": draft.tenant_id, "run_id": draft.run_id, "dispatch_key": draft.dispatch_key}
