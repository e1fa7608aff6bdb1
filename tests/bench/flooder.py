"""`python -m tests.bench.flooder`: flood a mesh as one tenant, until standard input ends.

The first line of standard input is a JSON object with the targets, a token, a session of the tenant
and the calls of each kind in a second. The calls go on at this rate whatever the answers say. The last
line of standard output has the seconds of the flood and the answers by kind and status.
"""

import asyncio
import hashlib
import json
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

import google_crc32c
import grpc.aio
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadChunk, UploadSpec
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_core.ids import IdKind, new_id

REFUSED = frozenset({"RESOURCE_EXHAUSTED"})
ANSWERS = {
    "read": {"OK"} | REFUSED,
    "list": {"OK"} | REFUSED,
    "write": {"OK"} | REFUSED,
    "spawn": {"OK"} | REFUSED,
    "scan": {"OK"} | REFUSED,
    "search": {"OK"} | REFUSED,
    "generate": {"OK"} | REFUSED,
    "upload": {"OK"} | REFUSED,
    "watch": {"OK"} | REFUSED,
    "fields": {"OK"} | REFUSED,
    "cut": {"INVALID_ARGUMENT"} | REFUSED,
    "malformed": {"INVALID_ARGUMENT"} | REFUSED,
    "denied": {"PERMISSION_DENIED"},
    "unauthenticated": {"UNAUTHENTICATED"},
}
"""The kinds of calls, and the answers that each must get and no others."""
RPCS = {
    "read": "session.v1.SessionService/GetSession",
    "list": "session.v1.SessionService/ListSessions",
    "write": "session.v1.TenantService/UpdateAgent",
    "spawn": "session.v1.SessionService/SpawnSession",
    "scan": "transcript.v1.TranscriptService/AssembleContext",
    "search": "transcript.v1.SearchService/SearchEntries",
    "generate": "model_router.v1.ModelRouterService/Generate",
    "upload": "attachment_blob.v1.AttachmentBlobService/UploadFile",
    "watch": "session.v1.SessionService/WaitSession",
    "denied": "session.v1.TenantService/ListTenants",
}
"""The RPCs of the kinds. The other kinds are reads."""
_UNKNOWN_FIELD = b"\xf8\x3f\x00"
_FIELDS = 50_000
# Calls without an answer, of each kind. Further ones are left out.
_MAX_OPEN = 64
_UPLOAD_BYTES = 1024 * 1024
_TIMEOUT_SECONDS = 20.0

Send = Callable[[], Awaitable[Any]]


async def main() -> None:
    """Flood until standard input ends, and print what came of it."""
    given = json.loads(await asyncio.to_thread(sys.stdin.readline))
    counts: Counter[str] = Counter()
    async with AsyncExitStack() as exits:
        channels = {
            name: await exits.enter_async_context(grpc.aio.insecure_channel(target))
            for name, target in given["targets"].items()
        }
        sends = _sends(channels, given["token"], given["session_id"])
        floods = [
            asyncio.create_task(_flood(kind, sends[kind], rate, counts))
            for kind, rate in given["rates"].items()
        ]
        begin = monotonic()
        await asyncio.to_thread(sys.stdin.read)
        seconds = monotonic() - begin
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    print(json.dumps({"seconds": seconds, "answers": counts}))


def _sends(channels: dict[str, grpc.aio.Channel], token: str, session_id: str) -> dict[str, Send]:
    """Return a function for each kind that makes one call."""
    bearer = (("authorization", f"Bearer {token}"),)
    options: dict[str, Any] = {"timeout": _TIMEOUT_SECONDS, "metadata": bearer}

    def channel_of(kind: str) -> grpc.aio.Channel:
        return channels[RPCS[kind].partition(".")[0].replace("_", "-")]

    def unary(kind: str) -> Any:
        return channel_of(kind).unary_unary(f"/spawnmesh.{RPCS[kind]}")

    get, spawn, scan = unary("read"), unary("spawn"), unary("scan")
    upload = channel_of("upload").stream_unary(f"/spawnmesh.{RPCS['upload']}")
    generate = channel_of("generate").unary_stream(f"/spawnmesh.{RPCS['generate']}")
    say_yes = message_pb2.Message(
        role=message_pb2.ROLE_USER,
        content=[message_pb2.ContentBlock(text=message_pb2.Text(text="Say yes."))],
    )
    asked = router_pb.GenerateRequest(messages=[say_yes]).SerializeToString()
    read = session_pb.GetSessionRequest(session_id=session_id).SerializeToString()
    context = transcript_pb.AssembleContextRequest(session_id=session_id, token_budget=100_000)
    data = bytes(_UPLOAD_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    whole = UploadChunk(offset=0, data=data, crc32c=google_crc32c.value(data))
    chunk = blob_pb.UploadFileRequest(chunk=whole).SerializeToString()

    def spawn_one() -> Any:
        request = session_pb.SpawnSessionRequest(request_id=uuid.uuid4().hex, task="Say yes.")
        return spawn(request.SerializeToString(), **options)

    async def generate_one() -> None:
        async for _ in generate(asked, **options):
            pass

    def fixed(kind: str, request: Any) -> Send:
        call, data = unary(kind), request.SerializeToString()
        return lambda: call(data, **options)

    agent = tenant_pb.UpdateAgentRequest(
        allow_missing=True, update_mask={"paths": ["*"]}, agent=AgentProfile(agent_id="flooded")
    )
    search = search_pb.SearchEntriesRequest(session_id=session_id, words="sky")

    async def file() -> AsyncIterator[bytes]:
        spec = UploadSpec(
            upload_id=new_id(IdKind.UPLOAD),
            name="zeros.bin",
            size_bytes=len(data),
            sha256=digest,
            mime_type="application/octet-stream",
        )
        yield blob_pb.UploadFileRequest(spec=spec).SerializeToString()
        yield chunk

    return {
        "read": lambda: get(read, **options),
        "list": fixed("list", session_pb.ListSessionsRequest()),
        "write": fixed("write", agent),
        "search": fixed("search", search),
        "generate": generate_one,
        "watch": fixed("watch", session_pb.WaitSessionRequest(session_id=session_id)),
        "fields": lambda: get(read + _UNKNOWN_FIELD * _FIELDS, **options),
        "cut": lambda: get(read + _UNKNOWN_FIELD * _FIELDS + _UNKNOWN_FIELD[:1], **options),
        "denied": fixed("denied", tenant_pb.ListTenantsRequest()),
        "spawn": spawn_one,
        "scan": lambda: scan(context.SerializeToString(), **options),
        "upload": lambda: call_client_stream(upload, file(), **options),
        "malformed": lambda: get(b"\xff" * 65_536, **options),
        "unauthenticated": lambda: get(read, timeout=_TIMEOUT_SECONDS),
    }


async def _flood(kind: str, send: Send, rate: float, counts: Counter[str]) -> None:
    """Make calls at the rate, without regard to the answers."""
    open_calls: set[asyncio.Task[None]] = set()
    begin, sent = monotonic(), 0
    while True:
        due = int((monotonic() - begin) * rate)
        for _ in range(due - sent):
            if len(open_calls) >= _MAX_OPEN:
                counts[f"{kind} LEFT_OUT"] += 1
                continue
            task = asyncio.create_task(_one(kind, send, counts))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)
        sent = due
        await asyncio.sleep(0.01)


async def _one(kind: str, send: Send, counts: Counter[str]) -> None:
    try:
        await send()
        counts[f"{kind} OK"] += 1
    except grpc.aio.AioRpcError as error:
        counts[f"{kind} {error.code().name}"] += 1


def command() -> Sequence[str]:
    """Return the command line of this program."""
    return (sys.executable, "-m", "tests.bench.flooder")


if __name__ == "__main__":
    asyncio.run(main())
