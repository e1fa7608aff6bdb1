"""Drafts of runs: FINALIZING, the decision, and the way back to RUNNING."""

from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.drafts import Acceptance
from spawnmesh_session.domain.enabled_hooks import EnabledHooks, Hook
from spawnmesh_session.domain.runs import Run, require_run, run_deleted
from spawnmesh_session.domain.tenants import masks_secrets
from spawnmesh_session.store import runs, tenants
from spawnmesh_session.store.enabled_hooks import send_enabled_hooks
from spawnmesh_session.store.rows import PendingRow, run_of

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class FinalizingRun:
    """A run of which a draft is offered, with what its end depends on."""

    run: Run
    agent_id: str
    masks_secrets: bool
    unread_count: int
    hooks: EnabledHooks
    is_decided: bool = False
    """This call has decided that the draft is the answer."""

    @property
    def is_judged(self) -> bool:
        """True if the draft cannot be decided as it is offered: plugins judge it, its text is
        masked, or a draft was decided before.
        """
        return bool(
            self.run.decided_entry_id or self.masks_secrets or Hook.BEFORE_AGENT_FINALIZE in self.hooks
        )


def _finalizing_of(row: Row, settings: dict[str, Any] | None, hooks: EnabledHooks) -> FinalizingRun:
    masks = masks_secrets(settings or {})
    return FinalizingRun(run_of(row), row["agent_id"], masks, row.get("unread", 0), hooks)


async def begin_finalizing(
    connection: Connection, tenant_id: str, run_id: str, epoch: int, entry_id: str
) -> FinalizingRun | None:
    """RUNNING -> FINALIZING with the draft, in one round trip. The run stays locked.

    This needs a run that is held at this epoch, no other decided draft and no unread message. Else
    return None, with nothing done; `get_finalizing` returns the facts.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    begun = await connection.execute(_SQL["begin_finalizing"], values)
    settings = await tenants.send_settings(connection, tenant_id)
    hooks = await send_enabled_hooks(connection, tenant_id)
    row = await begun.fetchone()
    return _finalizing_of(row, await settings.fetch(), await hooks.fetch()) if row else None


async def get_finalizing(database: Database, tenant_id: str, run_id: str) -> FinalizingRun:
    """Return the facts on which `begin_finalizing` depends. Raise RUN_LEASE_LOST without a run."""
    values = {"tenant_id": tenant_id, "run_id": run_id}
    async with database.pipelined(tenant_id) as connection:
        found = await connection.execute(_SQL["get_finalizing"], values)
        settings = await tenants.send_settings(connection, tenant_id)
        hooks = await send_enabled_hooks(connection, tenant_id)
    row = await found.fetchone()
    if row is None:
        raise run_deleted(run_id)
    return _finalizing_of(row, await settings.fetch(), await hooks.fetch())


async def supersede_decided(
    connection: Connection, tenant_id: str, run_id: str, epoch: int, entry_id: str
) -> None:
    """Let the decided draft of a RUNNING run, which an earlier runner offered, be superseded.

    Do nothing if the run is not held at this epoch, or if another draft is decided.
    """
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    await connection.execute(_SQL["supersede_decided"], values)


@dataclass(frozen=True, slots=True)
class DecidedRun:
    """A run before `decide_run`, and after it; `decided` is None if nothing was decided."""

    before: Run
    decided: Run | None


async def decide_run(
    database: Database,
    tenant_id: str,
    run_id: str,
    epoch: int,
    entry_id: str,
    text_key: str,
    acceptance: Acceptance,
) -> DecidedRun:
    """Decide as `send_decision` does, in one round trip, a transaction of its own.

    Raise RUN_LEASE_LOST if the run was deleted.
    """
    async with database.pipelined(tenant_id) as connection:
        locked = await runs.send_lock(connection, tenant_id, run_id)
        decided = await send_decision(connection, tenant_id, run_id, epoch, entry_id, text_key, acceptance)
    return DecidedRun(require_run(run_id, await locked.fetch()), await decided.fetch())


async def send_decision(
    connection: Connection,
    tenant_id: str,
    run_id: str,
    epoch: int,
    entry_id: str,
    text_key: str,
    acceptance: Acceptance,
) -> PendingRow[Run]:
    """Decide that the draft with this text is the answer. The transaction has locked the run.

    Keep what plugins decided about the draft with the decision. Decide nothing if the run is not
    held at this epoch, if a draft was decided before, for a superseded draft, and with unread
    messages.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "epoch": epoch,
        "entry_id": entry_id,
        "text_key": text_key,
        "capped_revisions": Jsonb([asdict(capped) for capped in acceptance.capped_revisions]),
        "finalized_by": list(acceptance.finalized_by),
    }
    return PendingRow(await connection.execute(_SQL["decide_run"], values), run_of)


async def resume_run(
    connection: Connection,
    tenant_id: str,
    run_id: str,
    epoch: int,
    *,
    revision_count: int = 0,
    superseded_entry_id: str = "",
) -> None:
    """FINALIZING -> RUNNING.

    Do nothing if the run is not held at this epoch or its draft was decided. A superseded draft
    never becomes the answer.
    """
    values = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "epoch": epoch,
        "revision_count": revision_count,
        "superseded_entry_id": superseded_entry_id,
    }
    await connection.execute(_SQL["resume_run"], values)


async def withdraw_decision(
    connection: Connection, tenant_id: str, run_id: str, epoch: int, entry_id: str
) -> None:
    """Make the run RUNNING without a decided draft. Do nothing if it is not held at the epoch."""
    values = {"tenant_id": tenant_id, "run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    await connection.execute(_SQL["withdraw_decision"], values)
