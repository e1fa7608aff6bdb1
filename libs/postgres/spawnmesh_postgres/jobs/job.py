"""Jobs, their kinds, and when a job that failed is tried again."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from spawnmesh_postgres.database import Connection

JobArguments = Mapping[str, str | int | bool]
"""Ids and what a handler needs beside them. Never content: operators see the arguments."""

_MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. Of the jobs of a kind with one key, a tenant has one at a time."""

    kind: str
    key: str
    arguments: JobArguments = field(default_factory=dict)
    traceparent: str = ""
    due_in: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A claimed job. `attempt` counts this attempt too.

    `claim_id` is the fencing token of the claim: a worker that lost its claim changes nothing.
    """

    tenant_id: str
    kind: str
    key: str
    claim_id: UUID
    attempt: int
    arguments: dict[str, Any]
    traceparent: str


@dataclass(frozen=True, slots=True)
class Again:
    """The answer of a handler whose job did not fail and is not done: it runs again `after`.

    `arguments` replace those of the job. `reason` is shown to operators until the next attempt.
    """

    after: timedelta = timedelta(0)
    arguments: JobArguments | None = None
    reason: str = ""


Handler = Callable[[ClaimedJob], Awaitable[Again | None]]
"""Works on a job. It returns None if the job is done, and raises if the attempt failed."""

AtEnd = Callable[[Connection, ClaimedJob, bool], Awaitable[None]]
"""Writes with the transaction that ends a job: `at_end(connection, job, is_dead)`."""

_CLAIM_MARGIN = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Pauses that double from `first_pause` to `longest_pause`, each up to a quarter shorter.

    A job that fails after `max_attempts`, or when it is older than `kept_for`, becomes a dead
    letter. None means that there is no such limit.
    """

    first_pause: timedelta = timedelta(seconds=2)
    longest_pause: timedelta = timedelta(minutes=5)
    max_attempts: int | None = None
    kept_for: timedelta | None = None

    def pause_after(self, attempt: int, jitter: float) -> timedelta:
        """Return the pause after this failed attempt. `jitter` is a random number below one."""
        doubled = self.first_pause.total_seconds() * float(2 ** min(max(attempt - 1, 0), _MAX_DOUBLINGS))
        return timedelta(seconds=min(doubled, self.longest_pause.total_seconds()) * (1 - jitter / 4))

    def is_last(self, attempt: int) -> bool:
        """Return whether no attempt follows this one if it fails, however young the job is."""
        return self.max_attempts is not None and attempt >= self.max_attempts


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job, and how a worker runs it.

    A worker runs at most `concurrency` jobs of the kind at once, and half as many of one tenant.
    An attempt that takes longer than `timeout` is cancelled and has failed. No other worker has the
    job for `claim_for`, which is somewhat longer than the timeout by default. A handler may extend
    it with `store.delay`. A service whose kind has `at_end` has the table of `tenant_purges`.
    """

    name: str
    handler: Handler
    concurrency: int
    retry: BackoffPolicy = BackoffPolicy()
    timeout: timedelta = timedelta(seconds=45)
    claim_for: timedelta | None = None
    at_end: AtEnd | None = None

    @property
    def share(self) -> int:
        """The most jobs of one tenant at once."""
        return max(1, self.concurrency // 2)

    @property
    def claim_time(self) -> timedelta:
        """The duration of a claim."""
        return self.claim_for or self.timeout + _CLAIM_MARGIN
