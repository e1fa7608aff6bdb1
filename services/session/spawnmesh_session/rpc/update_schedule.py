"""UpdateSchedule. Creates a schedule of the tenant, or changes one."""

from dataclasses import replace

from spawnmesh.session.v1.schedule_pb2 import ScheduledSpawn
from spawnmesh.session.v1.schedule_service_pb2 import UpdateScheduleRequest, UpdateScheduleResponse
from spawnmesh_calls.field_masks import apply_changes, changed_paths
from spawnmesh_core.errors import not_found
from spawnmesh_core.secrets import may_hold_secret
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import DEFAULT_AGENT_ID, require_agent
from spawnmesh_session.domain.etags import etag_differs
from spawnmesh_session.domain.schedules import Schedule, check_due_times, check_schedule_count
from spawnmesh_session.domain.tenants import masks_secrets, require_ready
from spawnmesh_session.operations.masking import mask_secrets
from spawnmesh_session.operations.schedule_jobs import set_job
from spawnmesh_session.operations.scheduled_spawns import spawn_request_of
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.schedule_messages import parse_schedule, render_schedule
from spawnmesh_session.rpc.spawn_session import parse_spawn_command
from spawnmesh_session.store import agents, runs, schedules, tenants

_FIXED = frozenset({"name", "paused", "upcoming_times", "last_firing", "create_time", "updated_by", "etag"})


async def update_schedule(
    request: UpdateScheduleRequest, caller: Caller, deps: Dependencies
) -> UpdateScheduleResponse:
    """Change the masked fields of the schedule, or create it, and set its job.

    Raise NOT_FOUND, ETAG_DIFFERS, INVALID_REQUEST, UNKNOWN_AGENT, SCHEDULE_COUNT_EXCEEDED and
    UNKNOWN_TENANT.
    """
    tenant_id, given = caller.tenant_id, request.schedule
    paths = changed_paths(request.update_mask, given, _FIXED)
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        # Of two concurrent calls, the second one finds the schedule of the first.
        settings = (await tenants.lock_tenant(connection, tenant_id)).settings
        current = await schedules.find_and_lock_schedule(connection, tenant_id, given.name)
        now = await runs.read_time(connection)
        if current is None:
            if given.etag or not request.allow_missing:
                raise not_found("schedule", given.name)
            check_schedule_count(await schedules.count_schedules(connection, tenant_id))
            wanted = parse_schedule(given, None, caller.subject)
        else:
            message = render_schedule(current, now, None, 0)
            apply_changes(paths, given, message)
            wanted = parse_schedule(message, current, caller.subject)
        if masks_secrets(settings):
            wanted = await _masked(wanted)
        written = current
        if current is None or current.content != wanted.content:
            if current is not None and given.etag not in ("", current.etag):
                raise etag_differs(
                    "schedule.etag", "schedule", current.name, etag=current.etag, version=current.version
                )
            await _check(connection, tenant_id, wanted)
            check_due_times(wanted.cron, wanted.time_zone, now)
            is_due_alike = current is not None and current.is_due_alike(wanted)
            cursor_time = current.cursor_time if current is not None and is_due_alike else now
            wanted = replace(wanted, cursor_time=cursor_time)
            written = await schedules.write_schedule(connection, tenant_id, wanted)
            if not is_due_alike:
                await schedules.delete_due_firings(connection, tenant_id, written.schedule_id)
                await set_job(connection, tenant_id, written, now)
        newest = await schedules.newest_firing(connection, tenant_id, written.schedule_id if written else "")
    return UpdateScheduleResponse(schedule=render_schedule(written or wanted, now, newest))


async def _check(connection: Connection, tenant_id: str, wanted: Schedule) -> None:
    """Raise INVALID_REQUEST or UNKNOWN_AGENT for spawns that would always be refused."""
    parse_spawn_command(spawn_request_of(wanted, "check"), None)
    agent_id = ScheduledSpawn.FromString(wanted.spawn).agent_id or DEFAULT_AGENT_ID
    require_agent(agent_id, await agents.get_agent(connection, tenant_id, agent_id))


async def _masked(wanted: Schedule) -> Schedule:
    """Return the schedule with the task as a masking transcript keeps it."""
    spawn = ScheduledSpawn.FromString(wanted.spawn)
    if not may_hold_secret(spawn.task):
        return wanted
    spawn.task = await mask_secrets(spawn.task)
    return replace(wanted, spawn=spawn.SerializeToString(deterministic=True))
