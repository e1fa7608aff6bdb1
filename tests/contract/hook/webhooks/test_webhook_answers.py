"""The answers of a webhook: which one is a receipt, and when the message is sent again."""

import asyncio
import socket
from contextlib import suppress
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from spawnmesh_core.clock import utc_now
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import Tenant
from tests.support.hook.webhook_receiver import (
    DELIVERED,
    PENDING,
    Execute,
    Serve,
    WebhookReceiver,
    log_of,
    put_webhook,
    rest_of_failure,
    rest_of_pause,
    run_again,
    run_ended,
    webhook_of,
)
from tests.support.hook.webhook_server import raw_https_site, server_tls

NO_CONNECTION = "no connection, or it ended before the answer"
LONGEST_PAUSE = 4 * 3_600
LONGEST_FAILURE_PAUSE = 300


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
async def test_a_status_of_success_is_a_receipt(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    await put_webhook(tenant, await serve(WebhookReceiver([status])))
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert (delivery.state, [one.status_code for one in delivery.attempts]) == (DELIVERED, [status])
    assert await execute("select 1 from jobs") == []
    assert not (await webhook_of(tenant)).HasField("failing_since_time")


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 308, 400, 401, 404, 409, 429, 500, 503, 599])
async def test_another_status_is_a_failure_and_the_message_is_sent_again(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, status: int
) -> None:
    elsewhere, receiver = WebhookReceiver(), WebhookReceiver()
    location = await serve(elsewhere)

    async def respond(_request: web.Request) -> web.StreamResponse:
        if len(receiver.bodies) == 1:
            return web.Response(status=status, headers={"Location": location}, text="secret words")
        return web.Response(status=204)

    receiver.respond = respond
    put = await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert (delivery.state, delivery.HasField("end_time")) == (PENDING, False)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(status, f"HTTP status {status}")]
    for table in ("jobs", "webhooks", "webhook_deliveries"):
        assert "secret words" not in str(await execute(f"select {table}::text from {table}"))
    webhook = await webhook_of(tenant)
    assert webhook.failing_since_time == delivery.attempts[0].start_time
    assert await worker.run_due() == 0, "it is not due yet"
    assert 0 < await rest_of_pause(execute) <= 5.5
    assert 0 < await rest_of_failure(execute) <= 5
    await run_again(worker, execute)
    [delivery] = await log_of(tenant)
    assert (delivery.state, [one.status_code for one in delivery.attempts]) == (DELIVERED, [status, 204])
    assert receiver.ids == [delivery.event_id] * 2
    assert len(receiver.messages(put.secret)) == 2
    assert elsewhere.bodies == []
    assert (await webhook_of(tenant)).etag == webhook.etag


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("600", 600),
        ("0000600", 600),
        ("2", 5.5),
        ("0", 5.5),
        ("999999", LONGEST_PAUSE),
        ("9999999999", LONGEST_PAUSE),
        ("9" * 5_000, LONGEST_PAUSE),
        ("-600", 5.5),
        ("600.5", 5.5),
        ("+600", 5.5),
        ("soon", 5.5),
        ("Mon, 99 Nov 2026 99:99:99 GMT", 5.5),
        ("Fri, 31 Dec 9999 23:59:59 -2359", LONGEST_PAUSE),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 5.5),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_longer_retry_after_is_respected(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute, retry_after: str, seconds: float
) -> None:
    """The message waits up to the longest pause, and its webhook up to five minutes."""
    await _answer_with(retry_after, tenant, worker, serve)
    assert seconds - 60 < await rest_of_pause(execute) <= seconds
    longest = min(seconds, LONGEST_FAILURE_PAUSE)
    assert longest - 60 < await rest_of_failure(execute) <= longest


async def test_a_retry_after_can_be_a_date(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    date = format_datetime(utc_now() + timedelta(hours=1), usegmt=True)
    await _answer_with(date, tenant, worker, serve)
    assert 3_000 < await rest_of_pause(execute) <= 3_600
    assert 240 < await rest_of_failure(execute) <= LONGEST_FAILURE_PAUSE


async def _answer_with(retry_after: str, tenant: Tenant, worker: JobWorker, serve: Serve) -> None:
    receiver = WebhookReceiver()

    async def respond(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": retry_after})

    receiver.respond = respond
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    assert [one.state for one in await log_of(tenant)] == [PENDING]


async def test_a_slow_receiver_hits_the_timeout(tenant: Tenant, worker: JobWorker, serve: Serve) -> None:
    receiver = WebhookReceiver()

    async def respond(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.respond = respond
    await put_webhook(tenant, await serve(receiver), timeout=Duration(seconds=1))
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(0, "no answer within 1 s")]
    assert delivery.attempts[0].latency.ToMilliseconds() >= 1_000
    assert delivery.state == PENDING


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (b"", 0, "no answer within 2 s"),
        (b"HTTP/1.1 200 OK\r\n", 0, "no answer within 2 s"),
        (b"not HTTP\r\n\r\n", 0, NO_CONNECTION),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000, 0, "the answer has more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, 0, "the answer has more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 200, ""),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 200, ""),
        (b"HTTP/1.1 503 No\r\nContent-Length: 9999999999\r\n\r\n", 503, "HTTP status 503"),
    ],
    ids=[
        "silence",
        "half a head",
        "no HTTP",
        "informational",
        "long head",
        "half a body",
        "gzip",
        "long body",
    ],
)
async def test_strange_answers(
    tenant: Tenant, worker: JobWorker, certificate: Path, answer: bytes, status: int, error: str
) -> None:
    async with raw_https_site(certificate, answer) as url:
        await put_webhook(tenant, url, timeout=Duration(seconds=2 if "2 s" in error else 30))
        await tenant.publish(run_ended())
        await worker.run_due()
    [delivery] = await log_of(tenant)
    [attempt] = delivery.attempts
    assert (attempt.status_code, attempt.error) in [(status, error), (0, NO_CONNECTION if error else error)]
    assert delivery.state == (PENDING if error else DELIVERED)


@pytest.mark.parametrize(("head", "state"), [(b"HTTP/1.1 200 OK", DELIVERED), (b"HTTP/1.1 500 No", PENDING)])
async def test_an_endless_answer_is_cut_off(
    tenant: Tenant, worker: JobWorker, certificate: Path, head: bytes, state: int
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> int:
        """Write until the connection is closed. Return the number of bytes."""
        written = 0
        with server_tls(certificate).wrap_socket(listener.accept()[0], server_side=True) as link:
            link.recv(65_536)
            link.sendall(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
            with suppress(OSError):
                while True:
                    link.sendall(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
                    written += 0x1000
        return written

    with listener:
        talking = asyncio.create_task(asyncio.to_thread(talk))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/hooks"
        await put_webhook(tenant, url, timeout=Duration(seconds=30))
        await tenant.publish(run_ended())
        await worker.run_due()
        assert await talking < 64 * 1024 * 1024
    assert [one.state for one in await log_of(tenant)] == [state]


async def test_a_receiver_that_closes_the_connection(
    tenant: Tenant, worker: JobWorker, serve: Serve, execute: Execute
) -> None:
    receiver = WebhookReceiver()

    async def respond(request: web.Request) -> web.StreamResponse:
        if len(receiver.bodies) == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.Response()

    receiver.respond = respond
    await put_webhook(tenant, await serve(receiver))
    await tenant.publish(run_ended())
    await worker.run_due()
    [delivery] = await log_of(tenant)
    assert [(one.status_code, one.error) for one in delivery.attempts] == [(0, NO_CONNECTION)]
    await run_again(worker, execute)
    assert [one.state for one in await log_of(tenant)] == [DELIVERED]
