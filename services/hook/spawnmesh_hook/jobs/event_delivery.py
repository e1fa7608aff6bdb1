"""The delivery of published events to observers: the handler of its background jobs."""

from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh.hook.v1.hook_handler_service_pb2 import HandleObservedEventRequest, HandleObservedEventResponse
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_hook.clients.handler_request import HandlerRequest
from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.deliveries import Delivery, DeliveryDecision
from spawnmesh_hook.domain.errors import PluginFailed
from spawnmesh_hook.domain.plugins import ContentAccess, HookKind, Plugin
from spawnmesh_hook.operations import redaction, request_builders
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.operations.plugin_invoker import PluginInvoker
from spawnmesh_hook.operations.time_budget import budget_of
from spawnmesh_hook.store import outbox
from spawnmesh_hook.store.deliveries import insert_delivery
from spawnmesh_hook.store.outbox import StoredEvent

MAX_ATTEMPT_COUNT = 58
RETRY = BackoffPolicy(
    first_pause=timedelta(seconds=2), longest_pause=timedelta(minutes=30), max_attempts=MAX_ATTEMPT_COUNT
)
"""About a day of attempts."""

# Only jobs of a dead worker, or of one that lost the database, are claimed again. An observer may
# have a longer timeout than `_SHORT_TIMEOUT`: the claim is then extended before it is called.
_CLAIM = timedelta(seconds=60)
_SHORT_TIMEOUT = timedelta(seconds=20)
_LONGEST_ATTEMPT = timedelta(minutes=15)  # The longest timeout of a plugin is ten minutes.


@dataclass(frozen=True, slots=True)
class EventDelivery:
    """Delivers each event to each of its observers at least once, in no order."""

    database: Database
    plugin_cache: PluginCache
    invoker: PluginInvoker
    workers: CpuWorkers

    def kind(self, concurrency: int) -> JobKind:
        """Return the kind of the jobs, of which `concurrency` run at the same time."""
        return JobKind(
            outbox.DELIVER_EVENT,
            self.deliver,
            concurrency,
            RETRY,
            timeout=_LONGEST_ATTEMPT,
            claim_for=_CLAIM,
            at_end=self.at_end,
        )

    async def deliver(self, job: ClaimedJob) -> Again | None:
        """Make one attempt. Raise PluginFailed if the observer did not receive the event."""
        name = job.arguments["plugin"]
        event = await outbox.get_event(self.database, job.tenant_id, job.arguments["event_key"])
        plugin = await self._observer_of(job.tenant_id, event.hook, name)
        if plugin is None:
            return None
        if plugin.paused:
            return await self._hold(job)
        await self._invoke(job, event, plugin)
        return None

    async def at_end(self, connection: Connection, job: ClaimedJob, is_dead: bool) -> None:
        """Clear the event's content if no job is left for it; log a delivery that was given up.

        The content is kept for a dead job, which an operator may retry.
        """
        event_key = job.arguments["event_key"]
        if not is_dead:
            await outbox.clear_delivered(connection, job.tenant_id, [event_key])
            return
        event = await outbox.read_event(connection, job.tenant_id, event_key)
        await insert_delivery(connection, job.tenant_id, _given_up(job, event))

    async def _observer_of(self, tenant_id: str, hook: HookKind, name: str) -> Plugin | None:
        """Return the observer, or None if it receives the event neither now nor when resumed."""
        for _ in range(2):
            observers = await self.plugin_cache.observers(tenant_id, hook)
            found = next((plugin for plugin in observers if plugin.name == name), None)
            if found is not None:
                return found
            # The plugin may have been registered a moment ago. A job that is dropped is lost.
            self.plugin_cache.invalidate()
        return None

    async def _hold(self, job: ClaimedJob) -> Again:
        """Keep the job until its observer is resumed, or try again if it is by now."""
        async with self.database.transaction(job.tenant_id) as connection:
            await outbox.hold_delivery(connection, job)
        self.plugin_cache.invalidate()
        return Again()  # Changes nothing if the job is held, which has ended the claim.

    async def _invoke(self, job: ClaimedJob, event: StoredEvent, plugin: Plugin) -> None:
        observed = ObservedEvent.FromString(event.content)
        budget = budget_of(plugin.timeout.total_seconds())
        if plugin.timeout > _SHORT_TIMEOUT:
            async with self.database.transaction(job.tenant_id) as connection:
                job_id, claim_for = (job.tenant_id, job.kind, job.key), plugin.timeout + _CLAIM
                await jobs.delay(connection, job_id, claim_for, claim_id=job.claim_id)
        [access] = await self.plugin_cache.content_access(job.tenant_id, event.hook, [plugin])
        request = await self.workers.run(
            job.tenant_id, len(event.content), _build_request, access, event.hook, observed
        )
        answer = await self.invoker.invoke(job.tenant_id, plugin, request, budget, attempt=job.attempt)
        if isinstance(answer, CallFailure):
            raise PluginFailed(plugin.name, event.hook, answer)


def _build_request(
    access: ContentAccess, hook: HookKind, event: ObservedEvent
) -> HandlerRequest[HandleObservedEventRequest, HandleObservedEventResponse]:
    """Build the request, without content if the content cannot be masked.

    Such an event was published while the tenant did not mask secrets.
    """
    try:
        return request_builders.observed(access, hook, event)
    except MeshError:
        return request_builders.observed(access, hook, redaction.without_content(event))


def _given_up(job: ClaimedJob, event: StoredEvent) -> Delivery:
    structlog.get_logger().warning("event_dead_lettered", plugin=job.arguments["plugin"], hook=event.hook)
    return Delivery(
        delivery_id=new_id(IdKind.DELIVERY),
        plugin=job.arguments["plugin"],
        hook=event.hook,
        session_id=event.session_id,
        run_id=event.run_id,
        start_time=utc_now(),
        latency=timedelta(0),
        decision=DeliveryDecision.DEAD,
        error=f"it did not receive the event in {job.attempt} attempts, and is not notified again",
        attempt=job.attempt,
    )
