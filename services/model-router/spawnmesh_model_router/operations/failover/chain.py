"""Call the candidates of a chain until one answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.defer import defer

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.candidates import Capability, Cooling, Incapable, Ready, SkipReason
from spawnmesh_model_router.domain.errors import all_candidates_failed, request_too_large
from spawnmesh_model_router.domain.events import Attempt, AttemptStarted, Completed, Event, UsageReport
from spawnmesh_model_router.domain.failures import AfterFailure
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.reasons import TRANSIENT_REASONS
from spawnmesh_model_router.domain.retry import cooldown_wait
from spawnmesh_model_router.domain.routing_request import RoutingRequest
from spawnmesh_model_router.operations.failover.candidate_call import CandidateCall
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.failover.progress import ChainProgress
from spawnmesh_model_router.operations.failover.routing import assess_link, build_links

_MIN_RETRY_AFTER_SECONDS = 1.0

NoteFailure = Callable[[Attempt, AfterFailure], None]
"""Takes a failed attempt, and what the chain did next."""


async def call_chain(
    deps: ChainDependencies, routing: RoutingRequest, request: ProviderRequest, note_failure: NoteFailure
) -> AsyncGenerator[Event | UsageReport, None]:
    """Yield the events of the call, in order. The last one is Completed.

    Closing the generator cancels the call to the provider. `note_failure` is called once for each
    failed attempt, when the next one begins or the chain ends. Raises MeshError UNKNOWN_MODEL
    before any provider is called, MODEL_REFUSED, STREAM_BROKEN and ALL_CANDIDATES_FAILED.
    """
    progress = ChainProgress(routing, request, build_links(deps.config, routing))
    try:
        while True:
            async with aclosing(_call_in_order(deps, progress)) as events:
                async for event in events:
                    if isinstance(event, AttemptStarted) and (failed := progress.take_failure()) is not None:
                        is_same = event.model == failed.model
                        note_failure(failed, AfterFailure.REPEATED if is_same else AfterFailure.FAILED_OVER)
                    yield event
                    if isinstance(event, Completed):
                        return
            if (seconds := _wait_for_cooldown(deps, progress)) is None:
                raise _all_failed(deps, progress)
            await asyncio.sleep(seconds)
    finally:
        if (failed := progress.take_failure()) is not None:
            note_failure(failed, AfterFailure.ENDED)


async def _call_in_order(
    deps: ChainDependencies, progress: ChainProgress
) -> AsyncGenerator[Event | UsageReport, None]:
    """Call each candidate that may be called now, until one answers.

    Candidates whose answer broke off earlier in the turn are called last.
    """
    broken = progress.routing.earlier.broken
    order = sorted(progress.chain, key=lambda link: link.model in broken)
    for position, link in enumerate(order):
        now = deps.clock()
        verdict = assess_link(deps.availability, progress, link, now)
        if not isinstance(verdict, Ready):
            progress.verdicts[link.model] = verdict
            if isinstance(verdict, Incapable) and Capability.IMAGES in verdict.missing:
                progress.images[link.model] = ImageOutcome.ROUTED_AROUND
            continue
        if verdict.probe:
            deps.availability.record_probe(link.model, progress.routing.tenant_id, now)
        if progress.attempts and (reason := progress.previous_reason) is not None:
            failed = progress.attempts[-1].model
            defer(partial(deps.metrics.failed_over, failed.provider, link.model.provider, reason))
        call = CandidateCall(deps, progress, link.model, order[position + 1 :])
        async with aclosing(call.events()) as events:
            async for event in events:
                yield event
                if isinstance(event, Completed):
                    return


def _wait_for_cooldown(deps: ChainDependencies, progress: ChainProgress) -> float | None:
    """Return the seconds to wait for a candidate in cooldown; None if the call has to end.

    It has to end after any attempt: the candidates' own retries are over.
    """
    if progress.attempts:
        return None
    now = deps.clock()
    rests = [
        (verdict.until - now).total_seconds()
        for verdict in progress.verdicts.values()
        if isinstance(verdict, Cooling) and verdict.reason in TRANSIENT_REASONS
    ]
    return cooldown_wait(rests, progress.routing.deadline - deps.monotonic(), deps.draw())


def _all_failed(deps: ChainDependencies, progress: ChainProgress) -> MeshError:
    now = deps.clock()
    tenant_id = progress.routing.tenant_id
    cooldowns = [deps.availability.cooldown_of(link.model, tenant_id, now) for link in progress.chain]
    seconds = min(
        ((cooldown.until - now).total_seconds() for cooldown in cooldowns if cooldown is not None),
        default=0.0,
    )
    outcomes = progress.outcomes(SkipReason.NOT_NEEDED)
    if progress.holds_nowhere:
        return request_too_large(outcomes)
    return all_candidates_failed(outcomes, max(seconds, _MIN_RETRY_AFTER_SECONDS))
