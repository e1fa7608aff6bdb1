"""The release of a held run: it goes back into the queue."""

import random
from dataclasses import replace

from spawnmesh_core.secrets import may_hold_secret
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_session.domain.runs import (
    HELD_RUN_STATES,
    NO_DELAY,
    NewDelay,
    Run,
    RunState,
    delay_pause,
    lease_lost,
)
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.domain.tenants import masks_secrets
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.store import events, runs, sessions, tenants

_NOT_RELEASED = HELD_RUN_STATES | {RunState.INTERRUPTED}
"""The states in which an interrupted run must end, or has ended."""


async def release_run(
    database: Database, tenant_id: str, run_id: str, epoch: int, delay: NewDelay = NO_DELAY
) -> Run:
    """Release the run for the runner that holds it; this does not count as an attempt.

    A run that was interrupted is not released: return it as it is.

    With a delay, the run can be claimed after a pause, longer each time and at least the one that
    is given. A repeat at the same epoch returns the run as it is. Raise RUN_LEASE_LOST if the run
    is not held at this epoch. If it was claimed since because the lease ran out, and there is a
    delay, the runner was cut off and not lost: the attempt that the claim used is given back.
    """
    async with database.pipelined(tenant_id) as connection:
        found = await runs.get_run(connection, tenant_id, run_id)
        if found.interrupt_time is not None and found.state in _NOT_RELEASED:
            return found
        session_id = found.session_id
        await sessions.lock_session(connection, tenant_id, session_id)
        if delay != NO_DELAY:
            earlier_count = (await runs.lock_run(connection, tenant_id, run_id)).delay.count
            pause = delay_pause(earlier_count, delay.pause, random.random())  # noqa: S311
            delay = replace(await _mask(connection, tenant_id, delay), pause=pause)
        run = await runs.release_run(connection, tenant_id, run_id, epoch, delay)
        if run is not None:
            await events.append_event(
                connection,
                tenant_id,
                session_id,
                EventKind.RUN,
                run_id=run_id,
                run_state=RunState.QUEUED,
                detail=f"delayed: {delay.reason}" if delay.reason else "released",
            )
            return run
        run = await runs.get_run(connection, tenant_id, run_id)
        if run.state == RunState.QUEUED and run.epoch == epoch:
            return run
        if delay != NO_DELAY:
            await runs.give_back_attempt(connection, tenant_id, run_id, epoch)
    raise lease_lost(run, epoch)


async def _mask(connection: Connection, tenant_id: str, delay: NewDelay) -> NewDelay:
    """Return the delay without secrets if the tenant masks them."""
    if not may_hold_secret(delay.message):
        return delay
    if not masks_secrets((await tenants.get_existing_tenant(connection, tenant_id)).settings):
        return delay
    return replace(delay, message=await mask_secrets(delay.message))
