"""The mesh with views, against services in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import (
    AlreadyExists,
    Attachment,
    Conflict,
    DataLoss,
    DeadlineExceeded,
    EventKind,
    FailedPrecondition,
    InternalError,
    InvalidRequest,
    Mesh,
    MeshError,
    NotFound,
    PermissionDenied,
    Reason,
    ResourceExhausted,
    RunFailed,
    RunNotDone,
    RunState,
    SessionMode,
    SessionState,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    connect,
)
from spawnmesh_client.settings import ClientSettings
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.status import Status
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    RUN_ID,
    SESSION_ID,
    FakeMesh,
    FakeSessions,
    add_sessions,
    event,
    mesh,
    served,
    session_in,
    unset,
)
from tests.support.command.tenants import FakeTenants
from tests.support.runtime.authority import Authority

__all__ = ["mesh", "unset"]


@asynccontextmanager
async def connected(mesh: FakeMesh, keys: Path, **options: Any) -> AsyncIterator[Mesh]:
    minter = TokenMinter("client", keys / "client.pem")
    token = options.pop("token", None) or minter.client_token("acme", "test", 60)
    async with connect(targets=mesh.targets, token=token, **options) as client:
        yield client


async def test_spawned_session_gives_its_result(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        session = await client.spawn("Work.", agent="clerk", mode=SessionMode.SESSION, run_timeout=90)
        assert (session.session_id, session.state) == (SESSION_ID, SessionState.ACTIVE)
        result = await session.result(timeout=60)

    assert result.text == "done"
    assert result.run.state is RunState.SUCCEEDED
    assert result.usage.input_token_count == 0
    spawn = mesh.sessions.requests[0]
    assert (spawn.agent_id, spawn.mode) == ("clerk", session_pb2.SESSION_MODE_SESSION)
    assert spawn.run_timeout.ToSeconds() == 90


async def test_run_is_a_spawn_and_its_result(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        assert (await client.run("Work.", timeout=60, label="night")).text == "done"
    assert mesh.sessions.requests[0].label == "night"


async def test_run_without_an_answer_raises_with_its_reason(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.outcome = session_in(
        session_pb2.RUN_STATE_FAILED, error_reason=reason_pb2.REASON_MODEL_REFUSED, error_message="no"
    )
    mesh.sessions.outcome.trace_id = "5f"
    async with connected(mesh, keys) as client:
        session = await client.session(SESSION_ID)
        with pytest.raises(RunFailed) as failed:
            await session.result(timeout=60)
    assert vars(failed.value) == {
        "reason": "MODEL_REFUSED",
        "message": "no",
        "state": RunState.FAILED,
        "run_id": RUN_ID,
        "session_id": SESSION_ID,
        "trace_id": "5f",
    }


async def test_session_that_ended_without_a_run_raises_too(mesh: FakeMesh, keys: Path) -> None:
    failed = session_pb2.SESSION_STATE_SPAWN_FAILED
    mesh.sessions.outcome = session_pb2.Session(
        session_id=SESSION_ID, state=failed, failure_reason=reason_pb2.REASON_SPAWN_REFUSED
    )
    mesh.sessions.outcome.latest_run.state = session_pb2.RUN_STATE_FAILED  # The fake waits for a run.
    async with connected(mesh, keys) as client:
        with pytest.raises(RunFailed) as refused:
            await (await client.session(SESSION_ID)).result(timeout=60)
    assert refused.value.reason == "SPAWN_REFUSED"


async def test_result_that_does_not_come_in_time_says_how_to_come_back(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_RUNNING)
    async with connected(mesh, keys) as client:
        session = await client.spawn("Work.")
        with pytest.raises(RunNotDone, match=r"goes on.*mesh\.session") as late:
            await session.result(timeout=0)
    assert isinstance(late.value, TimeoutError)
    assert (late.value.session_id, late.value.run_id, late.value.state) == (SESSION_ID, RUN_ID, "RUNNING")


async def test_events_continue_behind_the_last_one_when_the_service_drains(
    mesh: FakeMesh, keys: Path
) -> None:
    run, closed = session_pb2.SESSION_EVENT_KIND_RUN, session_pb2.SESSION_EVENT_KIND_CLOSED
    mesh.sessions.events = [event(1, run), event(2, run), event(3, closed)]
    mesh.sessions.broken_after = {2: MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.01)}
    async with connected(mesh, keys) as client:
        session = await client.session(SESSION_ID)
        seen = [(one.number, one.kind) async for one in session.events()]
        assert seen == [(1, EventKind.RUN), (2, EventKind.RUN), (3, EventKind.CLOSED)]
        assert [one.number async for one in client.events(SESSION_ID, after=2)] == [3]


async def test_methods_of_a_session_make_its_calls(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        session = await client.session(SESSION_ID)
        assert (await session.send("More.", request_id="r")).run_id == RUN_ID
        assert await session.kill() == 2
        assert await session.archive() == 3
        deleted = await session.delete()
        assert (deleted.deleted_session_count, deleted.killed_run_count) == (2, 1)
        assert (await session.refresh()) == session
        assert [one async for one in session.transcript()] == []
        assert [one.session_id async for one in client.sessions()] == [SESSION_ID]
    assert mesh.sessions.requests[0].text == "More."


async def test_interrupt_returns_the_run_and_its_result_raises(mesh: FakeMesh, keys: Path) -> None:
    reason, state = reason_pb2.REASON_INTERRUPTED, session_pb2.RUN_STATE_INTERRUPTED
    mesh.sessions.outcome = session_in(state, error_reason=reason, error_message="stopped")
    mesh.sessions.outcome.latest_run.interrupt_time.FromSeconds(1)
    async with connected(mesh, keys) as client:
        session = await client.session(SESSION_ID)
        assert await session.interrupt() is None
        mesh.sessions.interrupted = mesh.sessions.outcome.latest_run
        run = await session.interrupt("In French.", run_id=RUN_ID, request_id="r")
        with pytest.raises(RunFailed) as ended:
            await session.result(timeout=60)
    assert run is not None
    assert (run.state, run.state.is_terminal) == (RunState.INTERRUPTED, True)
    assert run.interrupt_time == datetime.fromtimestamp(1, UTC)
    assert (ended.value.reason, ended.value.state) == ("INTERRUPTED", RunState.INTERRUPTED)
    _, request, _ = mesh.sessions.requests
    assert (request.text, request.run_id, request.request_id) == ("In French.", RUN_ID, "r")


async def test_attachments_are_paths_bytes_and_streams(mesh: FakeMesh, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    files = [
        str(tmp_path / "a.md"),
        Attachment("b.md", b"b"),
        Attachment("c.md", BytesIO(b"c"), "text/x-c"),
        Attachment("d.md", tmp_path / "a.md"),
    ]
    async with connected(mesh, keys) as client:
        await client.spawn("Read.", attachments=files)
    sent = [(item.name, item.data, item.mime_type) for item in mesh.sessions.requests[0].attachments]
    assert sent == [
        ("a.md", b"a", "text/markdown"),
        ("b.md", b"b", "text/markdown"),
        ("c.md", b"c", "text/x-c"),
        ("d.md", b"a", "text/markdown"),
    ]


async def test_unknown_word_is_refused_before_any_call(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        with pytest.raises(ValueError, match="one of RUN, SESSION"):
            await client.spawn("Work.", mode="FOREVER")
    assert mesh.sessions.requests == []


async def test_refusal_is_of_the_class_of_its_status(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys) as client:
        with pytest.raises(NotFound) as missing:
            await client.session(new_id(IdKind.SESSION))
        assert missing.value.facts["resource"] == "session"
        mesh.sessions.refusal = MeshError(Reason.RUN_QUEUE_FULL, "full", retry_after_seconds=3)
        with pytest.raises(ResourceExhausted) as full:
            await client.spawn("Work.")
        assert (full.value.reason, full.value.retry_after_seconds) == (Reason.RUN_QUEUE_FULL, 3)
        mesh.sessions.refusal = MeshError(Reason.CONFLICT, "late", facts={"trace_id": "5f"})
        with pytest.raises(Conflict) as late:
            await client.spawn("Work.")
        assert late.value.trace_id == "5f"
    async with connected(mesh, keys, token="none") as client:
        with pytest.raises(Unauthenticated):
            await client.session(SESSION_ID)


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
def test_each_status_has_a_class(status: Status) -> None:
    error = MeshError(Reason.SPAWN_FAILED, "no", status=status)
    assert type(error) is not MeshError
    assert type(not_found("session", "x")) is NotFound
    assert error.status is status


@asynccontextmanager
async def old_server(code: grpc.StatusCode, text: str) -> AsyncIterator[str]:
    """Serve every RPC with a bare status, as a proxy or another program does."""

    class Refusal(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            async def refuse(_request: bytes, context: Any) -> bytes:
                await context.abort(code, text)
                return b""

            return (
                None if code is grpc.StatusCode.UNIMPLEMENTED else grpc.unary_unary_rpc_method_handler(refuse)
            )

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Refusal(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("INVALID_ARGUMENT", InvalidRequest, Reason.INVALID_REQUEST),
        ("NOT_FOUND", NotFound, Reason.NOT_FOUND),
        ("ALREADY_EXISTS", AlreadyExists, Reason.ALREADY_EXISTS),
        ("PERMISSION_DENIED", PermissionDenied, Reason.CALLER_NOT_ALLOWED),
        ("UNAUTHENTICATED", Unauthenticated, Reason.TOKEN_INVALID),
        ("FAILED_PRECONDITION", FailedPrecondition, Reason.INTERNAL),
        ("ABORTED", Conflict, Reason.CONFLICT),
        ("RESOURCE_EXHAUSTED", ResourceExhausted, Reason.POOL_EXHAUSTED),
        ("UNAVAILABLE", Unavailable, Reason.DEPENDENCY_UNAVAILABLE),
        ("DEADLINE_EXCEEDED", DeadlineExceeded, Reason.DEADLINE_EXCEEDED),
        ("DATA_LOSS", DataLoss, Reason.INTERNAL),
        ("UNIMPLEMENTED", Unimplemented, Reason.UNKNOWN_RPC),
        ("UNKNOWN", InternalError, Reason.INTERNAL),
    ],
)
async def test_bare_status_has_its_class_too(code: str, kind: type[MeshError], reason: Reason) -> None:
    async with (
        old_server(grpc.StatusCode[code], "a text of theirs") as url,
        connect(url, token="t") as client,
    ):
        with pytest.raises(kind) as refused:
            await client.session(SESSION_ID)
    assert (type(refused.value), refused.value.reason) == (kind, reason)
    assert refused.value.facts["dependency"] == "session"
    if code == "UNIMPLEMENTED":
        assert "of another version" in refused.value.message


async def test_mesh_that_is_not_there_is_unavailable(keys: Path) -> None:
    async with served("session", keys, add_sessions(FakeSessions(), FakeTenants())) as target:
        pass
    async with connect(f"http://{target}", token="t") as client:
        with pytest.raises(Unavailable, match=rf"at {target} \(.*refused\); call again later"):
            await client.session(SESSION_ID)


async def test_https_url_uses_tls_without_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = Authority("theirs")
    leaf = authority.leaf("mesh")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(leaf.key, leaf.certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        trusting = ClientSettings(tls_ca_file=tmp_path / "ca.crt")
        async with connect(f"https://localhost:{port}", token="t", settings=trusting) as client:
            with pytest.raises(Unimplemented, match="does not know this call"):
                await client.session(SESSION_ID)
        async with connect(f"https://localhost:{port}", token="t", settings=ClientSettings()) as client:
            with pytest.raises(Unavailable):
                await client.session(SESSION_ID)
    finally:
        await server.stop(None)


async def test_https_url_is_never_called_in_plaintext() -> None:
    async with (
        old_server(grpc.StatusCode.NOT_FOUND, "none") as url,
        connect(url.replace("http:", "https:"), token="t", settings=ClientSettings()) as client,
    ):
        with pytest.raises(Unavailable):
            await client.session(SESSION_ID)


async def test_service_that_has_no_target_is_named(mesh: FakeMesh, keys: Path) -> None:
    del mesh.targets["transcript"]
    async with connected(mesh, keys) as client:
        with pytest.raises(ValueError, match="transcript"):
            await client.search(SESSION_ID, "words")


async def test_token_is_in_no_representation_of_the_mesh(mesh: FakeMesh, keys: Path) -> None:
    async with connected(mesh, keys, token="secret-token") as client:
        assert "secret-token" not in repr(client)
