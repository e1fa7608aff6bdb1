"""The exception of a servicer arrives as a status with details."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import FieldViolation, MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF, Status
from spawnmesh_runtime.impersonation import impersonate


def raising(error: BaseException) -> Any:
    async def behavior(request: Any, context: Any) -> Any:
        raise error

    return behavior


async def outcome(served: Any, peer_of: Any, request: Any, **settings: Any) -> MeshError:
    async with peer_of(served.target, **settings) as peer:
        with impersonate("acme"), pytest.raises(MeshError) as caught:
            await peer.unary(
                pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn, request, timeout_seconds=60
            )
    async with asyncio.timeout(60):
        await served.server.drain.idle()
    return caught.value


async def test_refusal_arrives_as_it_was_raised(serve: Any, peer_of: Any, request_with: Any) -> None:
    sent = MeshError(
        Reason.SPAWN_FAILED,
        "undone: der Speicher läuft nicht",
        status=Status.UNAVAILABLE,
        retry_after_seconds=2.5,
        violations=(FieldViolation("a[2].b", "is odd"),),
        facts={"step": "stage", "count": 3},
    )
    got = await outcome(await serve(raising(sent)), peer_of, request_with())
    assert (got.reason, got.status, got.message) == (sent.reason, sent.status, sent.message)
    assert (got.retry_after_seconds, got.violations, got.facts) == (2.5, sent.violations, sent.facts)
    assert got.domain == "transcript.spawnmesh"


@pytest.mark.parametrize("letter", ["a", "é", "𝐚"])
async def test_a_long_refusal_arrives_cut_with_its_reason(
    serve: Any, peer_of: Any, request_with: Any, letter: str
) -> None:
    """Clients refuse large metadata, and would get no reason."""
    text = letter * 70_000
    sent = MeshError(
        Reason.SPAWN_FAILED,
        text,
        violations=(FieldViolation("a", text),) * 30,
        facts={"first": text, "second": text, "third": text, "fourth": "4"},
    )
    got = await outcome(await serve(raising(sent)), peer_of, request_with())
    assert got.reason == sent.reason
    assert got.message == letter * (1_000 // len(letter.encode()))
    assert got.facts["first"] == got.message
    assert got.facts["fourth"] == ""


async def test_every_reason_arrives_with_its_status(serve: Any, peer_of: Any, request_with: Any) -> None:
    reasons = iter(STATUS_OF)

    async def behavior(request: Any, context: Any) -> Any:
        raise MeshError(next(reasons), "no")

    served = await serve(behavior)
    async with peer_of(served.target) as peer:
        method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
        for reason in STATUS_OF:
            with impersonate("acme"), pytest.raises(MeshError) as caught:
                await peer.unary(method, request_with(), timeout_seconds=60)
            assert (caught.value.reason, caught.value.status) == (reason, STATUS_OF[reason])


async def test_an_internal_error_shows_only_its_trace_id_and_is_logged(
    serve: Any, peer_of: Any, request_with: Any, events: Any
) -> None:
    defect = ValueError("password=hunter2")
    got = await outcome(await serve(raising(defect)), peer_of, request_with())
    assert (got.reason, got.status) == (Reason.INTERNAL, Status.INTERNAL)
    assert "hunter2" not in got.message + repr(got.facts)
    assert len(got.facts["trace_id"]) == 32
    [event] = [event for event in events if event["event"] == "rpc"]
    assert (event["log_level"], event["exc_info"], event["code"]) == ("error", defect, "INTERNAL")


async def test_text_of_an_explicit_internal_error_is_hidden_too(
    serve: Any, peer_of: Any, request_with: Any
) -> None:
    got = await outcome(
        await serve(raising(MeshError(Reason.INTERNAL, "hunter2", facts={"at": "hunter2"}))),
        peer_of,
        request_with(),
    )
    assert "hunter2" not in got.message + repr(got.facts)


async def test_errors_of_a_driver_are_translated(serve: Any, peer_of: Any, request_with: Any) -> None:
    def translate(error: BaseException) -> MeshError | None:
        return unavailable("postgres") if isinstance(error, ConnectionError) else None

    served = await serve(
        raising(ConnectionResetError("10.0.0.7")), translate_errors=(lambda _: None, translate)
    )
    got = await outcome(served, peer_of, request_with())
    assert (got.reason, got.retry_after_seconds) == (Reason.DEPENDENCY_UNAVAILABLE, 1.0)
    assert got.facts == {"dependency": "postgres"}
    assert "10.0.0.7" not in got.message


async def test_timeout_in_the_work_is_deadline_exceeded(serve: Any, peer_of: Any, request_with: Any) -> None:
    got = await outcome(await serve(raising(TimeoutError())), peer_of, request_with())
    assert (got.reason, got.status) == (Reason.DEADLINE_EXCEEDED, Status.DEADLINE_EXCEEDED)


async def test_the_refusal_in_a_task_group_is_sent(serve: Any, peer_of: Any, request_with: Any) -> None:
    group = ExceptionGroup(
        "", [ValueError(), ExceptionGroup("", [MeshError(Reason.SESSION_CLOSED, "closed")])]
    )
    got = await outcome(await serve(raising(group)), peer_of, request_with())
    assert got.reason is Reason.SESSION_CLOSED


async def test_request_larger_than_the_limit_is_message_too_large(
    serve: Any, peer_of: Any, request_with: Any
) -> None:
    served = await serve(max_message_bytes=1024)
    got = await outcome(served, peer_of, request_with(task="x" * 2000))
    assert (got.reason, got.status) == (Reason.MESSAGE_TOO_LARGE, Status.RESOURCE_EXHAUSTED)
    assert served.plugin.seen == []


@pytest.mark.parametrize(
    "text",
    [
        "CLIENT: Sent message larger than max (5 vs. 4)",
        "SERVER: Received message larger than max (5 vs. 4)",
        "grpc: trying to send message larger than max (5 vs. 4)",
        "gRPC message exceeds maximum size 4: 5",
        "Received message exceeds the maximum configured message size.",
        "received metadata size exceeds soft limit (9 vs. 8); rejecting requests with some random probability",
    ],
)
async def test_each_grpc_says_that_a_message_is_too_large(
    serve: Any, peer_of: Any, request_with: Any, text: str
) -> None:
    async def behavior(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    got = await outcome(await serve(behavior), peer_of, request_with())
    assert (got.reason, got.retry_after_seconds) == (Reason.MESSAGE_TOO_LARGE, None)


async def test_peer_that_is_not_there_is_an_unavailable_dependency(peer_of: Any, request_with: Any) -> None:
    async with peer_of("127.0.0.1:1", name="transcript") as peer:
        with impersonate("acme"), pytest.raises(MeshError) as caught:
            await peer.unary(
                pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn,
                request_with(),
                timeout_seconds=60,
            )
    got = caught.value
    assert (got.reason, got.facts, got.domain) == (
        Reason.DEPENDENCY_UNAVAILABLE,
        {"dependency": "transcript"},
        "",
    )
    assert got.retry_after_seconds == 1.0
    assert "127.0.0.1" not in str(got)
    assert got.__cause__ is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("CANCELLED", Reason.CANCELLED),
        ("DEADLINE_EXCEEDED", Reason.DEADLINE_EXCEEDED),
        ("UNAUTHENTICATED", Reason.TOKEN_INVALID),
        ("PERMISSION_DENIED", Reason.CALLER_NOT_ALLOWED),
        ("UNAVAILABLE", Reason.DEPENDENCY_UNAVAILABLE),
        ("RESOURCE_EXHAUSTED", Reason.POOL_EXHAUSTED),
        ("UNIMPLEMENTED", Reason.INTERNAL),
        ("NOT_FOUND", Reason.INTERNAL),
    ],
)
async def test_status_without_details_becomes_the_reason_that_goes_with_it(
    serve: Any, peer_of: Any, request_with: Any, events: Any, code: str, reason: Reason
) -> None:
    async def behavior(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode[code], "from 10.0.0.7")

    got = await outcome(await serve(behavior), peer_of, request_with())
    assert got.reason is reason
    assert "10.0.0.7" not in got.message
    assert [event["code"] for event in events if event["event"] == "rpc"] == [code]


async def test_caller_that_goes_away_cancels_the_work(serve: Any, ask: Any, keys: Any, events: Any) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def behavior(request: Any, context: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    served = await serve(behavior)
    call = asyncio.create_task(ask(served.target, keys.minter("hook").service_token("acme")))
    await begun.wait()
    call.cancel()
    async with asyncio.timeout(60):
        await cancelled.wait()
        await served.server.drain.idle()
    assert [event["code"] for event in events if event["event"] == "rpc"] == ["CANCELLED"]


async def test_log_event_has_no_payload_and_no_error_text(
    serve: Any, peer_of: Any, request_with: Any, events: Any
) -> None:
    await outcome(
        await serve(raising(MeshError(Reason.NOT_FOUND, "text"))), peer_of, request_with(task="content")
    )
    [event] = [event for event in events if event["event"] == "rpc"]
    assert event.pop("duration_ms") >= 0
    assert event == {
        "event": "rpc",
        "log_level": "info",
        "service": "transcript",
        "method": "spawnmesh.hook.v1.HookHandlerService/HandleBeforeSpawn",
        "code": "NOT_FOUND",
        "reason": "NOT_FOUND",
        "caller": "service",
    }
