"""Asks a chain of candidates until one answers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.afterwards import afterwards

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.candidate_call import CandidateCall
from spawnmesh_model_router.domain.candidates import Capability, Incapable, Ready, SkipReason
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.errors import all_candidates_failed
from spawnmesh_model_router.events import Completed, Event, Spending
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.progress import Progress
from spawnmesh_model_router.route import build_links, judge

_RETRY_AFTER_SECONDS = 1.0  # Told where nothing rests, and never less.


async def generate(parts: Parts, ask: Ask) -> AsyncGenerator[Event | Spending, None]:
    """The events of the answer, in order; the last one is Completed. Closing the generator cancels the call that is under way.

    Raises MeshError UNKNOWN_MODEL before anyone is called, MODEL_REFUSED, STREAM_BROKEN, ALL_CANDIDATES_FAILED.
    """
    progress = Progress(build_links(parts.config, ask))
    for position, link in enumerate(progress.chain):
        now = parts.clock()
        verdict = judge(parts.availability, ask, progress, link, now)
        if not isinstance(verdict, Ready):
            progress.verdicts[link.model] = verdict
            if isinstance(verdict, Incapable) and Capability.IMAGES in verdict.missing:
                progress.images[link.model] = ImageOutcome.ROUTED_AROUND
            continue
        if verdict.probe:
            parts.availability.note_probe(link.model, now)
        if progress.attempts and (reason := progress.previous_reason) is not None:
            failed = progress.attempts[-1].model
            afterwards(partial(parts.metrics.failed_over, failed.provider, link.model.provider, reason))
        call = CandidateCall(parts, ask, progress, link.model, progress.chain[position + 1 :])
        async with aclosing(call.events()) as events:
            async for event in events:
                yield event
                if isinstance(event, Completed):
                    return
    raise _all_failed(parts, progress)


def _all_failed(parts: Parts, progress: Progress) -> MeshError:
    now = parts.clock()
    rests = [parts.availability.cooldown_of(link.model, now) for link in progress.chain]
    seconds = min(((rest.until - now).total_seconds() for rest in rests if rest is not None), default=0.0)
    return all_candidates_failed(progress.outcomes(SkipReason.NOT_NEEDED), max(seconds, _RETRY_AFTER_SECONDS))
