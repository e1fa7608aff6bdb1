"""Call one candidate of a chain, and retry it as often as its failures allow."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import time_ns

from opentelemetry.trace import Span
from spawnmesh_runtime.defer import defer

from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.failure import to_provider_failure
from spawnmesh_model_router.clients.providers.history import AdaptedRequest, adapt_request
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import (
    Answer,
    Finished,
    PieceStream,
    ProviderFailed,
    block_bytes,
)
from spawnmesh_model_router.domain.candidates import Capability, Incapable, ModelRef, Ready, SkipReason
from spawnmesh_model_router.domain.charges import ChargedUsage, charge_for
from spawnmesh_model_router.domain.errors import model_refused, stream_broken
from spawnmesh_model_router.domain.events import (
    Attempt,
    AttemptFailed,
    AttemptStarted,
    Completed,
    DiscardedAnswer,
    Event,
    UsageReport,
)
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.reasons import CHAIN_STOPPING, FailoverReason
from spawnmesh_model_router.domain.retry import MoveOn, MoveOnReason, Wait, after_failure, tries_allowed
from spawnmesh_model_router.domain.rotation import ACCOUNT_REASONS
from spawnmesh_model_router.domain.router_config import Provider
from spawnmesh_model_router.domain.routing_request import ChainLink
from spawnmesh_model_router.operations.failover.attempt import read_attempt
from spawnmesh_model_router.operations.failover.attempt_plan import AttemptPlan, plan_attempt
from spawnmesh_model_router.operations.failover.availability import FailureRecord
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.failover.progress import ChainProgress
from spawnmesh_model_router.operations.failover.routing import assess_link, has_larger_window
from spawnmesh_model_router.operations.failover.usage_estimate import UsageEstimate
from spawnmesh_model_router.operations.trace_content import TraceContent
from spawnmesh_model_router.telemetry import (
    finish_reason_of,
    mark_answered,
    mark_cost,
    mark_failed,
    mark_first_output,
    start_chat_span,
)


@dataclass(slots=True)
class CandidateCall:
    """The calls of one candidate.

    `later` are the candidates after it. `failures` has its latest failure with each credential, and
    `charged` the usage of its answer.
    """

    deps: ChainDependencies
    progress: ChainProgress
    model: ModelRef
    later: Sequence[ChainLink]
    failures: dict[str, FailureRecord] = field(default_factory=dict)
    charged: ChargedUsage = field(default_factory=ChargedUsage)

    @property
    def _tenant_id(self) -> str:
        return self.progress.routing.tenant_id

    @property
    def _provider(self) -> Provider:
        return self.deps.config.providers[self.model.provider]

    async def events(self) -> AsyncGenerator[Event | UsageReport, None]:
        """Yield the events of the candidate's attempts.

        The last event is Completed if the candidate answered; otherwise the next candidate is to be
        called. Raises MeshError MODEL_REFUSED and STREAM_BROKEN, which end the chain.
        """
        deps, begin = self.deps, self.deps.monotonic()
        credential = deps.availability.credential_for(self.model, self._tenant_id, deps.clock())
        tries = 1
        while credential is not None:
            plan = self._plan()
            answer = Answer()
            try:
                async with aclosing(self._attempt(plan, credential, answer)) as events:
                    async for event in events:
                        yield event
            except ProviderFailed as failed:
                if answer.finished is not None:
                    yield DiscardedAnswer(self.model, answer.finished.usage)
                failure = FailureRecord(failed, credential, deps.monotonic())
                self._raise_if_final(failure, answer, plan.image_note)
                yield AttemptFailed(self.progress.attempts[-1])
                self.failures[credential.fingerprint] = failure
                self._cool_credential(failure)
                other = deps.availability.other_credential(
                    self.model, self._tenant_id, failed.reason, self.failures.keys(), deps.clock()
                )
                if other is not None:
                    credential = other
                    continue
                first = self._first_to_repeat(failure)
                step = self._next_step(tries, first, begin)
                if isinstance(step, MoveOn):
                    self._give_up(failure, plan.image_note)
                    return
                tries += 1
                await asyncio.sleep(step.seconds)
                credential = first.credential
            else:
                yield self._completed(answer, credential, plan)
                return

    async def _attempt(
        self, plan: AttemptPlan, credential: Credential, answer: Answer
    ) -> AsyncGenerator[Event | UsageReport, None]:
        """Call the provider once, with a span and a record. Raises ProviderFailed."""
        deps = self.deps
        number, start_time, begin = len(self.progress.attempts) + 1, deps.clock(), deps.monotonic()
        session_id, max_output = self.progress.routing.session_id, plan.request.max_output
        span = start_chat_span(deps.tracer, self.model, self._provider, number, max_output, session_id)
        report = partial(self._report, span, begin)
        has_output = False
        try:
            yield AttemptStarted(
                number,
                self.model,
                plan.images,
                plan.prompt_image_detection_suppressed,
                plan.mentions_partial_execution,
                plan.thinking,
            )
            await self._trace_request(span, plan.request)
            adapted, pieces = await self._begin(plan.request, credential)
            bounds = adapted.request.usage_bounds(deps.config.models[str(self.model)])
            to_failure = partial(self._to_failure, adapted.request, answer)
            async with aclosing(read_attempt(pieces, answer, to_failure, adapted, bounds)) as output:
                async for piece in output:
                    if not has_output:
                        has_output = True
                        mark_first_output(span, deps.monotonic() - begin)
                    yield piece
            finished = answer.require_complete()
            self.charged = self._charge_for(answer, finished, plan)
            mark_cost(span, self.charged.cost_micros)
            await self._trace_answer(span, answer, finished)
            self._record(start_time)
            defer(partial(report, deps.monotonic(), finished))
        except ProviderFailed as failed:
            self._record(start_time, failed.reason, failed.http_status)
            defer(partial(report, deps.monotonic(), failed))
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # The caller cancelled or its deadline passed: the provider did not fail.
            span.set_attribute("error.type", "CANCELLED")
            raise
        finally:
            defer(partial(span.end, time_ns()))

    def _content_of(self, span: Span) -> TraceContent | None:
        """Return what renders the content for the span; None if it has none."""
        wanted = self.progress.routing.policy.trace_content and span.is_recording()
        return self.deps.trace_content if wanted else None

    async def _trace_request(self, span: Span, request: ProviderRequest) -> None:
        content = self._content_of(span)
        if content is not None:
            size, render = request.content_bytes, partial(content.of_request, request)
            span.set_attributes(await self.deps.threads.run(self._tenant_id, size, render))

    async def _trace_answer(self, span: Span, answer: Answer, finished: Finished) -> None:
        content = self._content_of(span)
        if content is not None:
            size = sum(map(block_bytes, answer.blocks))
            render = partial(content.of_answer, answer, finish_reason_of(finished))
            span.set_attributes(await self.deps.threads.run(self._tenant_id, size, render))

    async def _begin(
        self, request: ProviderRequest, credential: Credential
    ) -> tuple[AdaptedRequest, PieceStream]:
        """Return the request as the provider accepts it, and the call, which begins with its first
        piece.
        """
        deps = self.deps

        def render() -> tuple[AdaptedRequest, PieceStream]:
            adapted = adapt_request(request, self._provider.kind)
            model = deps.config.models[str(self.model)]
            timeouts = deps.retries.timeouts
            upstream = deps.upstreams[self.model.provider]
            return adapted, upstream.stream(adapted.request, self.model.model, model, credential, timeouts)

        return await deps.threads.run(self._tenant_id, request.content_bytes, render)

    async def _to_failure(self, request: ProviderRequest, answer: Answer, error: Exception) -> ProviderFailed:
        """Return the failure for the error of a call. What the error repeats of the request is no
        evidence.
        """
        provider, has_output = self.model.provider, answer.has_output
        judge = partial(to_provider_failure, error, provider, request, has_output=has_output)
        return await self.deps.threads.run(self._tenant_id, request.content_bytes, judge)

    def _charge_for(self, answer: Answer, finished: Finished, plan: AttemptPlan) -> ChargedUsage:
        """Return the usage of a complete answer, estimated as far as the provider reports none."""
        estimate = UsageEstimate(self.progress.request)
        usage = estimate.complete(finished.usage, answer.blocks, plan.images)
        return charge_for(self.deps.config.models[str(self.model)].prices, usage)

    def _record(
        self, start_time: datetime, reason: FailoverReason | None = None, http_status: int = 0
    ) -> None:
        number = len(self.progress.attempts) + 1
        self.progress.attempts.append(
            Attempt(number, self.model, start_time, self.deps.clock(), reason, http_status)
        )

    def _report(self, span: Span, begin: float, now: float, end: Finished | ProviderFailed) -> None:
        """Measure the call that began and ended at these times of the monotonic clock."""
        self.deps.metrics.attempted(self.model, self._provider, now - begin, end)
        if isinstance(end, ProviderFailed):
            mark_failed(span, end)
        else:
            mark_answered(span, end)

    def _plan(self) -> AttemptPlan:
        """Return the plan of the next attempt.

        Raises MeshError MODEL_REFUSED if the policy forbids leaving out an image.
        """
        progress = self.progress
        plan = plan_attempt(progress, self.model, self.deps.config)
        progress.images[self.model] = plan.images
        if plan.images is ImageOutcome.REFUSED:
            progress.verdicts[self.model] = Incapable((Capability.IMAGES,))
            outcomes = progress.outcomes(SkipReason.CHAIN_STOPPED)
            raise model_refused(
                self.model, FailoverReason.NO_FAILOVER, "the model cannot see images", outcomes
            )
        return plan

    def _raise_if_final(self, failure: FailureRecord, answer: Answer, image_note: str) -> None:
        """Raise the error that ends the chain, if the failure ends it."""
        failed = failure.failed
        self.progress.record_result(self.model, failed.reason, failed.detail, image_note)
        if answer.has_output:
            # The caller calls again at once. That call should reach another candidate if one is
            # ready, and this candidate otherwise.
            if self._is_other_ready():
                self.deps.availability.record_failure(self.model, self._tenant_id, failure, self.deps.clock())
            outcomes = self.progress.outcomes(SkipReason.CHAIN_STOPPED)
            first = self.progress.attempts[0]
            raise stream_broken(self.model, failed.reason, answer, first, outcomes) from None
        if failed.reason in CHAIN_STOPPING and not self._may_hold_later(failed.reason):
            outcomes = self.progress.outcomes(SkipReason.CHAIN_STOPPED)
            raise model_refused(self.model, failed.reason, failed.detail, outcomes) from None

    def _may_hold_later(self, reason: FailoverReason) -> bool:
        """Return whether a later candidate may hold what overflowed this one."""
        return reason is FailoverReason.CONTEXT_OVERFLOW and has_larger_window(
            self.later, self.progress.overflowed_window
        )

    def _first_to_repeat(self, last: FailureRecord) -> FailureRecord:
        """Return the failure whose credential can be called again first.

        After a failure of the account these are the credentials that met a rate limit.
        """
        if last.failed.reason not in ACCOUNT_REASONS:
            return last
        limited = [
            one
            for one in self.failures.values()
            if one.failed.reason is FailoverReason.RATE_LIMIT and not one.failed.is_about_request
        ]
        now = self.deps.monotonic()
        return min(limited, key=lambda one: one.seconds_to_wait(now) or 0.0, default=last)

    def _next_step(self, tries: int, failure: FailureRecord, begin: float) -> Wait | MoveOn:
        """Decide after round `tries` over the credentials that can succeed."""
        failed = failure.failed
        if failed.is_about_request and failed.reason is FailoverReason.RATE_LIMIT:
            # A request that is too large for one minute is too large for the next one.
            return MoveOn(MoveOnReason.NOT_TRANSIENT)
        retries, now = self.deps.retries, self.deps.monotonic()
        max_tries = tries_allowed(
            failed.reason,
            is_silent=failed.is_silent,
            others_ready=self._is_other_ready(),
            before_failover=retries.tries_before_failover,
            at_last=retries.tries_at_last_candidate,
        )
        routing = self.progress.routing
        return after_failure(
            tries,
            failed.reason,
            retry_after=failure.seconds_to_wait(now),
            remaining=routing.deadline - now,
            spent=now - begin,
            draw=self.deps.draw(),
            max_tries=min(max_tries, routing.policy.max_tries or max_tries),
        )

    def _is_other_ready(self) -> bool:
        now, availability = self.deps.clock(), self.deps.availability
        return any(
            isinstance(assess_link(availability, self.progress, link, now), Ready) for link in self.later
        )

    def _cool_credential(self, failure: FailureRecord) -> None:
        """Start the cooldown of a failure that is the credential's own.

        A cooldown of the model is decided when the candidate is given up.
        """
        if self.deps.availability.rests_credential(self.model, failure):
            self.deps.availability.record_failure(self.model, self._tenant_id, failure, self.deps.clock())

    def _give_up(self, last: FailureRecord, image_note: str) -> None:
        if not self.deps.availability.rests_credential(self.model, last):
            self.deps.availability.record_failure(self.model, self._tenant_id, last, self.deps.clock())
        self.progress.record_result(self.model, last.failed.reason, last.failed.detail, image_note)

    def _completed(self, answer: Answer, credential: Credential, plan: AttemptPlan) -> Completed:
        last = self.progress.attempts[-1]
        self.deps.availability.record_success(self.model, self._tenant_id, credential, last.start_time)
        self.progress.record_result(self.model, None, plan.image_note)
        return Completed(
            self.model,
            answer,
            answer.require_complete(),
            self.progress.outcomes(SkipReason.NOT_NEEDED),
            tuple(self.progress.attempts),
            plan.images,
            plan.thinking,
            plan.image_provider,
            self.charged,
        )
