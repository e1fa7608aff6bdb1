"""The kinds of background jobs: their handlers, concurrency limits and retry policies."""

from dataclasses import replace
from datetime import timedelta

from spawnmesh_postgres.jobs.job import BackoffPolicy, JobKind
from spawnmesh_postgres.long_running.runner import OperationRunner

from spawnmesh_session.domain import job_kinds
from spawnmesh_session.jobs.budget_jobs import BudgetJobs
from spawnmesh_session.jobs.clean_ups import CleanUps
from spawnmesh_session.jobs.follow_ups import FollowUps
from spawnmesh_session.jobs.run_end_events import RunEndPublisher
from spawnmesh_session.jobs.schedules import FIRING_TIMEOUT, ScheduleJobs
from spawnmesh_session.jobs.session_events import SessionEventPublisher

_UNTIL_DONE = BackoffPolicy(first_pause=timedelta(seconds=5), longest_pause=timedelta(seconds=30))
_A_DAY = BackoffPolicy(kept_for=timedelta(days=1))
_CLEAN_UPS = 8  # A service that is slow for one tenant must not delay all others.
_FIRINGS = 4  # Times the concurrency: a spawn waits for plugins, and holds no connection meanwhile.


def make_kinds(
    follow_ups: FollowUps,
    ends: RunEndPublisher,
    changes: SessionEventPublisher,
    clean_ups: CleanUps,
    budgets: BudgetJobs,
    schedules: ScheduleJobs,
    operations: OperationRunner,
    concurrency: int,
) -> list[JobKind]:
    """Return the kinds. Those that follow starts, ends and changes have `concurrency` places each.

    Jobs that remove data from other services are never given up. Jobs that notify observers are
    given up after a day.
    """
    return [
        JobKind(job_kinds.RELEASE_ATTACHMENTS, follow_ups.release_attachments, concurrency),
        JobKind(job_kinds.RELEASE_TRANSCRIPT, follow_ups.release_transcript, concurrency, _A_DAY),
        JobKind(job_kinds.PUBLISH_RUN_END, ends.publish_run_end, concurrency, _A_DAY),
        JobKind(job_kinds.PUBLISH_SPAWN_FAILURE, ends.publish_spawn_failure, concurrency, _A_DAY),
        JobKind(job_kinds.PUBLISH_SESSION_START, follow_ups.publish_session_start, concurrency, _A_DAY),
        JobKind(job_kinds.PUBLISH_SESSION_END, follow_ups.publish_session_end, concurrency, _A_DAY),
        JobKind(job_kinds.PUBLISH_SESSION_EVENT, changes.publish_session_event, concurrency, _A_DAY),
        JobKind(job_kinds.UNDO_SPAWN, clean_ups.undo_spawn, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.CLEAN_UP_SPAWN, clean_ups.clean_up_spawn, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.DELETE_SESSION, clean_ups.delete_session, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.DELETE_FAMILY, clean_ups.delete_family, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.PUSH_SETTINGS, clean_ups.push_settings, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.EXPIRE_MODEL_CALL, budgets.expire_model_call, _CLEAN_UPS, _UNTIL_DONE),
        JobKind(job_kinds.WAKE_BUDGET, budgets.wake_budget, concurrency, _UNTIL_DONE),
        JobKind(
            job_kinds.FIRE_SCHEDULE,
            schedules.fire_schedule,
            _FIRINGS * concurrency,
            _UNTIL_DONE,
            timeout=FIRING_TIMEOUT,
        ),
        replace(operations.kind(), concurrency=_CLEAN_UPS, retry=_UNTIL_DONE),
    ]
