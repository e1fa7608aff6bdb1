"""`spawnmesh transcript tier` with a transcript that fails half-way."""

from typing import Any, cast

import grpc.aio
import pytest
from google.longrunning.operations_pb2 import Operation
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata, WaitOperationRequest
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_calls.wire_errors import status_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_command.cli.tier import _tier
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

SESSION = "ses_" + "0" * 26
NAME = "services/transcript/operations/opr_" + "0" * 26
FAILURE = MeshError(Reason.INTERNAL, "internal error; trace 1")


class HalfWay:
    """A transcript service whose operation tiers some entries and then fails, or does not start."""

    def __init__(self, channel: grpc.aio.Channel, *, first: bool) -> None:
        self.channel = channel
        self._starts = not first

    def service(self, _name: str) -> "HalfWay":
        return self

    async def unary(self, _method: Any, request: Any, *, timeout_seconds: float = 10.0) -> Any:
        if isinstance(request, pb.ListTranscriptsRequest):
            size = pb.TranscriptSize(session_id=SESSION, stored_bytes=100, logical_bytes=100)
            return pb.ListTranscriptsResponse(transcripts=[size])
        if isinstance(request, WaitOperationRequest):
            return failed_operation()
        if self._starts:
            return Operation(name=NAME)
        raise FAILURE


def failed_operation() -> Operation:
    operation = Operation(name=NAME, done=True, error=status_of(FAILURE, "transcript.spawnmesh"))
    metadata = OperationMetadata()
    metadata.partial_response.Pack(pb.TierTranscriptResponse(**DONE))
    operation.metadata.Pack(metadata)
    return operation


DONE: dict[str, Any] = {
    "examined_entry_count": 3,
    "externalized_entry_count": 2,
    "cooled_entry_count": 1,
    "cooled_bytes": 40,
}


@pytest.mark.parametrize("session_id", ["", SESSION])
async def test_work_before_a_failure_is_reported_and_counted(
    capsys: pytest.CaptureFixture[str], session_id: str
) -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        mesh = cast(WireMesh, HalfWay(channel, first=False))
        assert not await _tier(mesh, pb.TIER_ACTION_APPLY, session_id, as_json=False)
    out, err = capsys.readouterr()
    said = "2 entries put, 1 dropped, 40 bytes  stored 60 of 100 bytes, 60 %"
    assert out.splitlines() == [f"{SESSION}  {said}", f"1 transcripts  {said}"]
    assert SESSION in err
    assert "INTERNAL" in err


async def test_one_that_fails_at_once_is_the_commands_failure() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(MeshError) as caught:
            await _tier(
                cast(WireMesh, HalfWay(channel, first=True)), pb.TIER_ACTION_APPLY, SESSION, as_json=False
            )
    assert caught.value is FAILURE
