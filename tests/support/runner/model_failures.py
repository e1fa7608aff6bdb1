"""ReportModelFailures of the scripted session service."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import model_failure_pb2 as pb


@dataclass
class ModelFailureReports:
    """The attempts that fail before each answer, the number of failures that are known when the run
    is claimed, the time that a report takes, and what the runner reported, and how often of that
    before it offered its answer.
    """

    known_count: int = 0
    seconds: float = 0.0
    early_count: int = 0
    before_answer: tuple[generation_pb2.Attempt, ...] = ()
    reported: list[pb.ReportModelFailuresRequest] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[int, str, str, int]]:
        """The number, model, reason and HTTP status of each failure, as it was reported."""
        return [
            (request.first_number + place, one.model, one.reason, one.http_status)
            for request in self.reported
            for place, one in enumerate(request.failures)
        ]


class ReportModelFailures:
    """The RPC of the service."""

    mesh: Any

    async def ReportModelFailures(
        self, request: pb.ReportModelFailuresRequest, context: Any
    ) -> pb.ReportModelFailuresResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("ReportModelFailures")
        reports = self.mesh.model_failures
        await asyncio.sleep(reports.seconds)
        reports.early_count += self.mesh.finalized is None
        reports.reported.append(request)
        return pb.ReportModelFailuresResponse()
