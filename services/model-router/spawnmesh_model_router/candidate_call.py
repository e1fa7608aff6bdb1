"""Asks one candidate of a chain, as often as that makes sense."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import time_ns

from opentelemetry.trace import Span
from spawnmesh_runtime.afterwards import afterwards

from spawnmesh_model_router.ask import Ask, Link
from spawnmesh_model_router.attempt import attempt
from spawnmesh_model_router.availability import Blame
from spawnmesh_model_router.carry import Carried, carry
from spawnmesh_model_router.credentials import Credential
from spawnmesh_model_router.domain.candidates import Capability, Incapable, ModelRef, Ready, SkipReason
from spawnmesh_model_router.domain.cooldown import Scope, scope_of
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.reasons import CHAIN_STOPPING, FailoverReason
from spawnmesh_model_router.domain.retry import MoveOn, MoveOnReason, Wait, after_failure, tries_allowed
from spawnmesh_model_router.errors import model_refused, stream_broken
from spawnmesh_model_router.events import Attempt, AttemptFailed, AttemptStarted, Completed, Event, Spending, Used
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.progress import Progress
from spawnmesh_model_router.providers.answer import Answer, Finished, ProviderFailed
from spawnmesh_model_router.route import judge
from spawnmesh_model_router.telemetry import mark_answered, mark_failed, start_chat_span


@dataclass(slots=True)
class CandidateCall:
    """One candidate's turn. `later` are the candidates behind it, `blames` its latest failure with each credential."""

    parts: Parts
    ask: Ask
    progress: Progress
    model: ModelRef
    later: Sequence[Link]
    blames: dict[str, Blame] = field(default_factory=dict)

    async def events(self) -> AsyncGenerator[Event | Spending, None]:
        """Ends with Completed when the candidate answered; without it, the next one's turn has come.

        Raises MeshError MODEL_REFUSED and STREAM_BROKEN, which end the chain.
        """
        parts, begin = self.parts, self.parts.monotonic()
        credential = parts.availability.credential_for(self.model.provider, parts.clock())
        tries = 0
        while credential is not None:
            tries += 1
            carried = self._carried()
            note = carried.note
            answer = Answer()
            try:
                async with aclosing(self._attempt(carried, credential, answer)) as events:
                    async for event in events:
                        yield event
            except ProviderFailed as failed:
                if answer.finished is not None:
                    yield Used(self.model, answer.finished.usage)
                blame = Blame(failed, credential)
                self._stop_if_final(blame, answer, note)
                yield AttemptFailed(self.progress.attempts[-1])
                self.blames[credential.fingerprint] = blame
                other = parts.availability.other_credential(
                    self.model.provider, failed.reason, self.blames.keys(), parts.clock()
                )
                if other is not None:
                    self._rest_credential(blame)
                    credential = other
                    continue
                step = self._next_step(tries, failed, begin)
                if isinstance(step, MoveOn):
                    self._leave(failed, note)
                    return
                await asyncio.sleep(step.seconds)
            else:
                yield self._completed(answer, credential, carried)
                return

    async def _attempt(
        self, carried: Carried, credential: Credential, answer: Answer
    ) -> AsyncGenerator[Event | Spending, None]:
        """One try, with its span and its record. Raises ProviderFailed."""
        parts, provider = self.parts, self.model.provider
        number, start_time = len(self.progress.attempts) + 1, parts.clock()
        span = start_chat_span(
            parts.tracer, self.model, parts.config.providers[provider].kind, number, self.ask.session_id
        )
        try:
            yield AttemptStarted(
                number,
                self.model,
                carried.images,
                carried.prompt_image_detection_suppressed,
                carried.told_of_partial_execution,
                carried.thinking,
            )
            pieces = parts.upstreams[provider].ask(
                carried.question,
                self.model.model,
                parts.config.models[str(self.model)],
                credential,
                parts.patience.timing,
            )
            async with aclosing(attempt(pieces, answer, provider, carried.question)) as shown:
                async for piece in shown:
                    yield piece
            finished = answer.require_whole()
            self._record(start_time)
            afterwards(partial(self._tell, span, finished))
        except ProviderFailed as failed:
            self._record(start_time, failed.reason, failed.http_status)
            afterwards(partial(self._tell, span, failed))
            raise
        except (asyncio.CancelledError, GeneratorExit):
            span.set_attribute("error.type", "CANCELLED")  # Nobody's failure: the caller is gone, or out of time.
            raise
        finally:
            afterwards(partial(span.end, time_ns()))

    def _record(self, start_time: datetime, reason: FailoverReason | None = None, http_status: int = 0) -> None:
        number = len(self.progress.attempts) + 1
        self.progress.attempts.append(Attempt(number, self.model, start_time, self.parts.clock(), reason, http_status))

    def _tell(self, span: Span, end: Finished | ProviderFailed) -> None:
        if isinstance(end, ProviderFailed):
            self.parts.metrics.attempted(self.model.provider, end.reason)
            mark_failed(span, end)
        else:
            self.parts.metrics.attempted(self.model.provider, None)
            mark_answered(span, end)

    def _carried(self) -> Carried:
        """What this try carries. Raises MeshError MODEL_REFUSED where policy lets no image be left out."""
        progress = self.progress
        carried = carry(self.ask, progress, self.model, self.parts.config)
        progress.images[self.model] = carried.images
        if carried.images is ImageOutcome.REFUSED:
            progress.verdicts[self.model] = Incapable((Capability.IMAGES,))
            outcomes = progress.outcomes(SkipReason.CHAIN_STOPPED)
            raise model_refused(self.model, FailoverReason.NO_FAILOVER, "the model cannot see images", outcomes)
        return carried

    def _stop_if_final(self, blame: Blame, answer: Answer, note: str) -> None:
        """Raises the refusal that ends the chain, if the failure is one that does."""
        failed = blame.failed
        self.progress.tried(self.model, failed.reason, failed.detail, note)
        if answer.has_output:
            # The caller asks again at once. That is to reach another candidate where there is one, and this one where there is not.
            if self._others_ready():
                self.parts.availability.rest(self.model, blame, self.parts.clock())
            outcomes = self.progress.outcomes(SkipReason.CHAIN_STOPPED)
            raise stream_broken(self.model, failed.reason, answer, outcomes) from None
        if failed.reason in CHAIN_STOPPING:
            outcomes = self.progress.outcomes(SkipReason.CHAIN_STOPPED)
            raise model_refused(self.model, failed.reason, failed.detail, outcomes) from None

    def _next_step(self, tries: int, failed: ProviderFailed, begin: float) -> Wait | MoveOn:
        if failed.is_about_request and failed.reason is FailoverReason.RATE_LIMIT:
            return MoveOn(MoveOnReason.NOT_TRANSIENT)  # What is too large for one minute is so for the next.
        patience, now = self.parts.patience, self.parts.monotonic()
        most = tries_allowed(
            failed.reason,
            others_ready=self._others_ready(),
            before_failover=patience.tries_before_failover,
            at_last=patience.tries_at_last_candidate,
        )
        most = min(most, self.ask.policy.max_tries or most)
        return after_failure(
            tries,
            failed.reason,
            retry_after=failed.retry_after_seconds,
            remaining=self.ask.deadline - now,
            spent=now - begin,
            draw=self.parts.draw(),
            most_tries=most,
        )

    def _others_ready(self) -> bool:
        now, availability = self.parts.clock(), self.parts.availability
        return any(isinstance(judge(availability, self.ask, self.progress, link, now), Ready) for link in self.later)

    def _rest_credential(self, blame: Blame) -> None:
        """The credential alone is at fault: what is about the model is decided when the other credential has been tried."""
        if scope_of(blame.failed.reason) is Scope.CREDENTIAL:
            self.parts.availability.rest(self.model, blame, self.parts.clock())

    def _leave(self, last: ProviderFailed, note: str) -> None:
        now = self.parts.clock()
        for blame in self.blames.values():
            if blame.failed is last or scope_of(blame.failed.reason) is not Scope.CREDENTIAL:
                self.parts.availability.rest(self.model, blame, now)
        self.progress.tried(self.model, last.reason, last.detail, note)

    def _completed(self, answer: Answer, credential: Credential, carried: Carried) -> Completed:
        last = self.progress.attempts[-1]
        self.parts.availability.answered(self.model, credential, last.start_time)
        self.progress.tried(self.model, None, carried.note)
        outcomes = self.progress.outcomes(SkipReason.NOT_NEEDED)
        return Completed(
            self.model,
            answer,
            answer.require_whole(),
            outcomes,
            tuple(self.progress.attempts),
            carried.images,
            carried.thinking,
        )
