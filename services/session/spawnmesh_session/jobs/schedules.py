"""The due times of schedules: the handler of their jobs."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, ClaimedJob

from spawnmesh_session.domain.schedules import FiringOutcome, cursor_of, next_due, plan_due
from spawnmesh_session.operations.scheduled_spawns import ScheduledSpawner, store_due
from spawnmesh_session.store import runs, schedules

FIRING_TIMEOUT = timedelta(minutes=5)
"""The longest attempt: a kill and a spawn, which have timeouts of their own."""

_BUSY_PAUSE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ScheduleJobs:
    """Stores the due times of a schedule, and fires them one after the other."""

    database: Database
    spawner: ScheduledSpawner

    async def fire_schedule(self, job: ClaimedJob) -> Again | None:
        """Store what has become due, fire the oldest of it, and return when to go on.

        A crash in between fires it again, which finds the same session. Nothing is left to do for a
        schedule that was paused or deleted. One worker at a time fires due times of a schedule,
        also after a change has made its job due anew.
        """
        tenant_id, schedule_id = job.tenant_id, job.key
        async with self.database.pipelined(tenant_id) as connection:
            schedule = await schedules.lock_schedule_by_id(connection, tenant_id, schedule_id)
            if schedule is None or schedule.paused:
                return None
            now = await runs.read_time(connection)
            if schedule.busy_until is not None and schedule.busy_until > now:
                return Again(_BUSY_PAUSE, reason="another worker fires a due time")
            plan = plan_due(schedule, now)
            for due_time in plan.missed:
                await store_due(connection, tenant_id, schedule_id, due_time, FiringOutcome.MISSED, now)
            for due_time in plan.to_fire:
                await store_due(connection, tenant_id, schedule_id, due_time, FiringOutcome.DUE, now)
            if known := [*plan.missed, *plan.to_fire]:
                await schedules.move_cursor(connection, tenant_id, schedule_id, max(known))
            due = await schedules.next_due_firing(connection, tenant_id, schedule_id)
            if due is not None:
                await schedules.set_busy(connection, tenant_id, schedule_id, now + FIRING_TIMEOUT)
        if due is not None:
            try:
                await self.spawner.fire(tenant_id, schedule, due, now)
            finally:
                # After a crash, the schedule is busy until this attempt would have been cancelled.
                async with self.database.pipelined(tenant_id) as connection:
                    await schedules.set_busy(connection, tenant_id, schedule_id, None)
            return Again()  # There may be more, or another due time by now.
        upcoming = next_due(schedule.cron, schedule.time_zone, max(now, cursor_of(schedule, now)))
        return None if upcoming is None else Again(upcoming - now)
