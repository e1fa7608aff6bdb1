"""Clients that spawn sessions, with files, children, impatience and kills."""

import asyncio
import json
from pathlib import Path
from random import Random

from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_client.attachments import inline_items
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.scripted_agents import CALLER, COORDINATOR

from tests.chaos.random_faults.history import Outcome
from tests.chaos.random_faults.load.calls import Client, secret_file

STORY = "Report the figures."
PARENTS = ("caller", "story")
"""The labels of sessions whose agents spawn children."""
_KINDS = {"plain": 3, "files": 4, "impatient": 4, "caller": 3, "story": 2, "killed": 2}
"""The kinds of sessions, which are also their labels, with the weights by which they are drawn."""
_ONE_CHILD = "sessions_spawn " + json.dumps({"task": "Say something."})
_MAX_FILES_BYTES = 1024 * 1024
_IMPATIENT_SECONDS = (0.01, 0.08)
_REPEATS = 60


async def story_files(directory: Path) -> list[InlineAttachment]:
    """Return the files of the demo's story; the directory is new."""
    make_files(directory, 1, small=True)
    return await inline_items([directory / name for name in (TABLE, TEXT, PICTURE)], _MAX_FILES_BYTES)


async def spawn_steadily(client: Client, story: list[InlineAttachment]) -> None:
    """Spawn sessions of every kind, first one of each, and wait for most of them."""
    kinds = list(_KINDS)
    client.random.shuffle(kinds)
    while not client.stop.is_set():
        kind = kinds.pop() if kinds else client.random.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
        session_id = await _spawn(kind, client, story)
        if not session_id:
            await client.pause(0.2, 1.0)
            continue
        if kind == "killed":
            await client.pause(0.0, 2.0)
            await client.kill(session_id)
        elif client.random.random() < 0.7:
            await client.wait(session_id)
        await client.pause(0.0, 1.0)


async def probe_steadily(client: Client) -> None:
    """Spawn about once a second, with and without a file, whatever is away; wait for no run.

    The other clients wait for their runs, so in a long outage they make no spawns that could show
    how it is refused. Each session is killed at once. A spawn that is refused is repeated later.
    """
    async with asyncio.TaskGroup() as others:
        while not client.stop.is_set():
            request = client.spawn_request("Say something.", label="probe")
            if client.random.random() < 0.5:
                request.attachments.append(secret_file("0.txt", _shared_or_own(client.random)))
            _, answer = await client.call_spawn(request)
            if answer is not None:
                others.create_task(client.kill(answer.session.session_id))
            else:
                others.create_task(_repeat_later(client, request))
            await client.pause(0.5, 1.5)


async def _repeat_later(client: Client, request: pb.SpawnSessionRequest) -> None:
    """Repeat a spawn until it is answered or refused for good, and kill its session."""
    for _ in range(_REPEATS):
        await client.pause(5.0, 15.0)
        call, answer = await client.call_spawn(request)
        if answer is not None:
            await client.kill(answer.session.session_id)
        if call.outcome is not Outcome.UNKNOWN:
            return


async def _spawn(kind: str, client: Client, story: list[InlineAttachment]) -> str:
    request = client.spawn_request("Say something.", label=kind)
    match kind:
        case "files" | "impatient" | "killed":
            count = client.random.randrange(1, 4)
            request.attachments.extend(
                secret_file(f"{number}.txt", _shared_or_own(client.random)) for number in range(count)
            )
        case "caller":
            request.agent_id, request.task = CALLER, _ONE_CHILD
        case "story":
            request.agent_id, request.task = COORDINATOR, STORY
            request.attachments.extend(story)
    if kind == "impatient":
        await _repeat_impatiently(client, request)
    return await client.spawn(request)


def _shared_or_own(random: Random) -> str:
    """Half of the contents come again, so that blobs have several references."""
    return f"shared {random.randrange(5)}" if random.random() < 0.5 else f"own {random.getrandbits(64):x}"


async def _repeat_impatiently(client: Client, request: pb.SpawnSessionRequest) -> None:
    """Send the request several times at once, with deadlines that are too short."""

    async def once() -> None:
        await client.call(
            "spawn",
            client.sessions.SpawnSession,
            request,
            seconds=client.random.uniform(*_IMPATIENT_SECONDS),
            request_id=request.request_id,
            task=request.task,
        )
        await client.pause(0.0, 0.1)

    await asyncio.gather(*(once() for _ in range(client.random.randrange(2, 5))))
