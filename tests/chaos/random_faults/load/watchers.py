"""Clients that watch sessions, and clients that look for those of another tenant."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.chaos.random_faults.history import Outcome
from tests.chaos.random_faults.load.calls import Client

_WATCH_SECONDS = 60.0


async def watch_steadily(client: Client, other: Client) -> None:
    """Watch the newest session of the other client of the same tenant to its end."""
    seen: set[str] = set()
    while not client.stop.is_set():
        fresh = [session_id for session_id in other.accepted if session_id not in seen]
        if not fresh:
            await client.pause(0.2, 0.5)
            continue
        session_id = fresh[-1]
        seen.add(session_id)
        await _watch(client, "watch", session_id)


async def watch_again(client: Client, session_ids: Sequence[str]) -> None:
    """Watch ended sessions from their beginning. Each stream ends by itself."""
    await asyncio.gather(*(_watch(client, "watch again", session_id) for session_id in session_ids))


async def _watch(client: Client, operation: str, session_id: str) -> None:
    """Watch the session until the stream ends, or the time is over, and record the numbers of its events."""
    numbers: list[int] = []
    with client.history.call(operation, client.tenant, session_id=session_id) as call:
        call.got = {"numbers": numbers}
        with suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_SECONDS):
                request = pb.WatchSessionRequest(session_id=session_id)
                async with aclosing(client.mesh.watch(request)) as messages:
                    async for message in messages:
                        numbers.append(message.session_event.number)  # noqa: PERF401 - also of a cut stream
                call.got["has_ended"] = True


async def pry_steadily(client: Client, stranger: Client) -> None:
    """Ask for sessions of another tenant. The history has each answer."""
    while not client.stop.is_set():
        await client.pause(0.5, 1.5)
        if not stranger.accepted:
            continue
        session_id = client.random.choice(stranger.accepted)
        if client.random.random() < 0.5:
            method, request = client.sessions.GetSession, pb.GetSessionRequest(session_id=session_id)
        else:
            method, request = client.sessions.KillSession, pb.KillSessionRequest(session_id=session_id)
        call, _ = await client.call("pry", method, request, session_id=session_id)
        if call.outcome is Outcome.REFUSED and call.reason != str(Reason.NOT_FOUND):
            call.got = {"unexpected": call.reason}
