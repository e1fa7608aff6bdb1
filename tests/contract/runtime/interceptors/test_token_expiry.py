"""A stream that outlives the token of its caller ends with a refusal, in every state of
the stream.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    TranscriptServiceStub,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.interceptors import auth
from spawnmesh_runtime.server import build_server

REQUEST = pb.FollowEntriesRequest(session_id="ses_" + "0" * 26)


class News(TranscriptServiceServicer):
    async def FollowEntries(self, request: Any, context: Any) -> AsyncIterator[pb.FollowEntriesResponse]:
        yield pb.FollowEntriesResponse()
        await asyncio.Event().wait()


@pytest.mark.parametrize("left_seconds", [0.0, 1.5])
async def test_the_token_ends_while_the_first_message_is_written_or_later(
    process_named: Any, peer_of: Any, keys: Any, monkeypatch: pytest.MonkeyPatch, left_seconds: float
) -> None:
    server = build_server(process_named("transcript"))
    add_TranscriptServiceServicer_to_server(News(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    token = keys.minter("client").client_token("acme", "ann", 60)
    late = timedelta(seconds=60 - left_seconds)
    monkeypatch.setattr(auth, "utc_now", lambda: utc_now() + late)
    try:
        async with peer_of(f"127.0.0.1:{port}") as peer:
            with use_token(token), pytest.raises(MeshError) as caught:
                async for _ in peer.stream(
                    TranscriptServiceStub(peer.channel).FollowEntries, REQUEST, timeout_seconds=60
                ):
                    pass
    finally:
        await server.stop(None)
    assert caught.value.reason is Reason.TOKEN_EXPIRED
