"""The due times of schedules: the handler of their jobs."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, ClaimedJob

from spawnmesh_session.domain.schedules import FiringOutcome, next_due, plan_due
from spawnmesh_session.operations.scheduled_spawns import ScheduledSpawner, store_due
from spawnmesh_session.store import runs, schedules


@dataclass(frozen=True, slots=True)
class ScheduleJobs:
    """Stores the due times of a schedule, and fires them one after the other."""

    database: Database
    spawner: ScheduledSpawner

    async def fire_schedule(self, job: ClaimedJob) -> Again | None:
        """Store what has become due, fire the oldest of it, and return when to go on.

        A crash in between fires it again, which finds the same session. Nothing is left to do for a
        schedule that was paused or deleted.
        """
        tenant_id, schedule_id = job.tenant_id, job.key
        async with self.database.pipelined(tenant_id) as connection:
            schedule = await schedules.lock_schedule_by_id(connection, tenant_id, schedule_id)
            if schedule is None or schedule.paused:
                return None
            now = await runs.read_time(connection)
            plan = plan_due(schedule, now)
            for due_time in plan.missed:
                await store_due(connection, tenant_id, schedule_id, due_time, FiringOutcome.MISSED, now)
            for due_time in plan.to_fire:
                await store_due(connection, tenant_id, schedule_id, due_time, FiringOutcome.DUE, now)
            if known := [*plan.missed, *plan.to_fire]:
                await schedules.move_cursor(connection, tenant_id, schedule_id, max(known))
            due = await schedules.next_due_firing(connection, tenant_id, schedule_id)
        if due is not None:
            await self.spawner.fire(tenant_id, schedule, due, now)
            return Again()  # There may be more, or another due time by now.
        upcoming = next_due(schedule.cron, schedule.time_zone, max(now, schedule.cursor_time))
        return None if upcoming is None else Again(upcoming - now)
