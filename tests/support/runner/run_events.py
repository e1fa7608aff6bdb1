"""ReportRunEvents of the scripted session service."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import run_event_pb2 as pb


@dataclass
class RunEventReports:
    """The attempts that fail before each answer, the number of events that are known when the run
    is claimed, the time that a report takes, and what the runner reported, and how often of that
    before it offered its answer.
    """

    known_count: int = 0
    seconds: float = 0.0
    early_count: int = 0
    before_answer: tuple[generation_pb2.Attempt, ...] = ()
    requests: list[pb.ReportRunEventsRequest] = field(default_factory=list)

    @property
    def numbered(self) -> list[tuple[int, pb.RunEvent]]:
        """Each event with its number, as it was reported."""
        return [
            (request.first_number + place, event)
            for request in self.requests
            for place, event in enumerate(request.events)
        ]

    @property
    def failures(self) -> list[tuple[int, str, str, int]]:
        """The number, model, reason and HTTP status of each failure."""
        numbered = ((number, event.model_failure) for number, event in self.numbered)
        return [(number, one.model, one.reason, one.http_status) for number, one in numbered if one.model]

    @property
    def decisions(self) -> list[pb.HookDecision]:
        """The decisions of plugins."""
        return [event.hook_decision for _, event in self.numbered if event.HasField("hook_decision")]


class ReportRunEvents:
    """The RPC of the service."""

    mesh: Any

    async def ReportRunEvents(
        self, request: pb.ReportRunEventsRequest, context: Any
    ) -> pb.ReportRunEventsResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("ReportRunEvents")
        reports = self.mesh.run_events
        await asyncio.sleep(reports.seconds)
        reports.early_count += self.mesh.finalized is None
        reports.requests.append(request)
        return pb.ReportRunEventsResponse()
