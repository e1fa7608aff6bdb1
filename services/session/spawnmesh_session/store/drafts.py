"""Drafts of runs: FINALIZING, the decision, and the way back to RUNNING."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.runs import Run, UngrantedRevision, require_run
from spawnmesh_session.store.rows import run_of

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class FinalizingRun:
    """A run as `begin_finalizing` left it. If `has_begun`, it is FINALIZING with the draft."""

    run: Run
    agent_id: str
    unread_count: int
    has_begun: bool
    masks_secrets: bool


async def begin_finalizing(
    database: Database, tenant_id: str, run_id: str, epoch: int, entry_id: str
) -> FinalizingRun:
    """RUNNING -> FINALIZING with the draft, in one round trip, a transaction of its own.

    This needs a run that is held at this epoch, no decided draft and no unread message. Else the
    run stays as it is, except that a draft that was decided before is superseded from then on.
    Raise RUN_LEASE_LOST if the run was deleted.
    """
    values = {"run_id": run_id, "epoch": epoch, "entry_id": entry_id}
    [row] = await database.call(tenant_id, _SQL["begin_finalizing"], values)
    run = require_run(run_id, run_of(row) if row["run_id"] else None)
    return FinalizingRun(run, row["agent_id"], row["waiting"], row["has_begun"], bool(row["masks_secrets"]))


@dataclass(frozen=True, slots=True)
class DecidedRun:
    """A run as `decide_run` left it, with the number of unread messages."""

    run: Run
    unread_count: int


async def decide_run(
    database: Database,
    tenant_id: str,
    run_id: str,
    epoch: int,
    entry_id: str,
    text_key: str,
    capped_revisions: Sequence[UngrantedRevision] = (),
) -> DecidedRun:
    """Decide that the draft with this text is the answer, in a transaction of its own.

    Keep the revisions that were requested and not granted with the decision.

    The run is FINALIZING with the decided draft. With unread messages, or for a superseded draft,
    it is RUNNING again. It stays as it is if it is not held at this epoch, or a draft was decided
    before. Raise RUN_LEASE_LOST if the run was deleted.
    """
    values = {
        "run_id": run_id,
        "epoch": epoch,
        "entry_id": entry_id,
        "text_key": text_key,
        "capped_revisions": Jsonb([asdict(capped) for capped in capped_revisions]),
    }
    [row] = await database.call(tenant_id, _SQL["decide_run"], values)
    return DecidedRun(require_run(run_id, run_of(row) if row["run_id"] else None), row["waiting"])


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
