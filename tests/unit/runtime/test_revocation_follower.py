"""A process that cannot follow the revocations says so once, and goes on from where it was."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import token_service_pb2 as pb
from spawnmesh_core.errors import unavailable
from spawnmesh_runtime.key_files import make_keys
from spawnmesh_runtime.revocation_follower import RevocationFollower
from spawnmesh_runtime.revoked_tokens import RevokedTokens
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.waiting import eventually

Step = Callable[[], pb.WatchRevokedTokensResponse]


class ScriptedSession:
    """Answers each call with a step, and then waits forever."""

    def __init__(self, *steps: Step) -> None:
        self.channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self.steps = list(steps)
        self.asked: list[int] = []

    async def stream(self, _method: Any, request: Any, **_options: Any) -> AsyncGenerator[Any, None]:
        self.asked.append(request.after_change)
        if not self.steps:
            await asyncio.Event().wait()
        yield self.steps.pop(0)()


async def test_outage_is_logged_once_and_ended_by_a_position(tmp_path: Path) -> None:
    make_keys(tmp_path)
    now = 0.0

    def at(seconds: float, *, change: int = 0) -> Step:
        def step() -> pb.WatchRevokedTokensResponse:
            nonlocal now
            now = seconds
            if not change:
                raise unavailable("session")
            token = pb.RevokedToken(tenant_id="acme", token_id="tok_1", expire_time=Timestamp(seconds=2**31))
            return pb.WatchRevokedTokensResponse(tokens=[token], change=change)

        return step

    session = ScriptedSession(at(1, change=7), at(5), at(20), at(40), at(41, change=9))
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    minter = TokenMinter("hook", tmp_path / "hook.pem")
    follower = RevocationFollower(session, minter, revoked, monotonic=lambda: now)  # type: ignore[arg-type]
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("info"))
    try:
        with structlog.testing.capture_logs() as logged:
            following = asyncio.create_task(follower.follow_forever())
            await eventually(lambda: len(session.asked) == 6)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
    finally:
        structlog.configure(wrapper_class=before)
    assert session.asked == [0, 7, 7, 7, 7, 9]
    assert [(one["event"], one.get("age_seconds", one.get("after_seconds"))) for one in logged] == [
        ("revocations_stale", 19.0),
        ("revocations_followed", 40.0),
    ]
    assert "acme/tok_1" in revoked
    await session.channel.close()
