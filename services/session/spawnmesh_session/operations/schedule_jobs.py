"""The job of a schedule: it is due at the next due time, and there is none while it is paused."""

from datetime import datetime

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import delete, reschedule

from spawnmesh_session.domain.job_kinds import FIRE_SCHEDULE
from spawnmesh_session.domain.schedules import Firing, Schedule, next_due
from spawnmesh_session.store import runs, schedules


async def set_job(connection: Connection, tenant_id: str, schedule: Schedule, now: datetime) -> None:
    """Make the job due at the next due time; delete it if the schedule is paused.

    A worker that has the job does not end it any more.
    """
    due_time = None if schedule.paused else next_due(schedule.cron, schedule.time_zone, now)
    if due_time is None:
        await delete(connection, tenant_id, FIRE_SCHEDULE, schedule.schedule_id)
    else:
        job = NewJob(FIRE_SCHEDULE, schedule.schedule_id, due_in=due_time - now)
        await reschedule(connection, tenant_id, job)


async def pause_or_resume(
    database: Database, tenant_id: str, name: str, *, paused: bool
) -> tuple[Schedule, datetime, Firing | None]:
    """Pause or resume the schedule; return it with the time and its newest firing.

    Due times count from now on, and those that are stored and not fired do not count. A schedule
    that already has this state does not change. Raise NOT_FOUND.
    """
    async with database.pipelined(tenant_id) as connection:
        schedule = await schedules.lock_schedule(connection, tenant_id, name)
        now = await runs.read_time(connection)
        if schedule.paused is not paused:
            schedule = await schedules.set_paused(connection, tenant_id, name, now, paused=paused)
            await schedules.delete_due_firings(connection, tenant_id, schedule.schedule_id)
            await set_job(connection, tenant_id, schedule, now)
        newest = await schedules.newest_firing(connection, tenant_id, schedule.schedule_id)
    return schedule, now, newest


async def remove_schedule(connection: Connection, tenant_id: str, schedule: Schedule) -> None:
    """Delete the locked schedule with its history and its job."""
    await schedules.delete_schedule(connection, tenant_id, schedule)
    await delete(connection, tenant_id, FIRE_SCHEDULE, schedule.schedule_id)
