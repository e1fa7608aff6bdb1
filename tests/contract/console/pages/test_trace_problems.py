"""The page of a trace that cannot be read: a sentence, what to do, and never an error of the console."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from spawnmesh_client.session import Session
from spawnmesh_console.clients.trace_backend import TraceBackend, TraceUnavailable
from spawnmesh_console.domain.trace_problems import TraceProblem, words_for
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_devstack.ports import LOOPBACK, free_ports

from tests.support.console.in_process import open_in_process
from tests.support.console.trace_backends import Answer, LoopbackTraces, open_trace_backend
from tests.support.console.visitors import ConsoleTenant, read

MIB = 1024 * 1024


@pytest.fixture(scope="module")
async def backend() -> AsyncIterator[LoopbackTraces]:
    async with open_trace_backend() as opened:
        yield opened


@pytest.fixture
async def session(tenant: ConsoleTenant) -> Session:
    return await tenant.mesh.spawn("Say hello.", runtime="EXTERNAL")


def status(code: int, **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers=headers, text="<script>alert(1)</script> of the backend")

    return answer


async def half(request: web.Request) -> web.StreamResponse:
    """Return the begin of an answer that is longer."""
    response = web.StreamResponse(headers={"content-length": "100"})
    await response.prepare(request)
    await response.write(b"{")
    return response


async def broken(request: web.Request) -> web.StreamResponse:
    response = await half(request)
    assert request.transport is not None
    request.transport.close()
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    await half(request)
    return await asyncio.Future()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (status(404), TraceProblem.NO_SPANS),
        (b'{"result":{}}', TraceProblem.NO_SPANS),
        (status(401), TraceProblem.REFUSED),
        (status(403), TraceProblem.REFUSED),
        (status(400), TraceProblem.FAILED),
        (status(500), TraceProblem.FAILED),
        (status(503), TraceProblem.FAILED),
        (status(204), TraceProblem.FAILED),
        (status(302, location="http://127.0.0.1:1/elsewhere"), TraceProblem.FAILED),
        (status(200), TraceProblem.UNREADABLE),
        (b"", TraceProblem.UNREADABLE),
        (b'{"data":[{"traceID":"ab"}]}', TraceProblem.UNREADABLE),
        (b"[" * 200_000, TraceProblem.UNREADABLE),
        (b" " * (8 * MIB + 1), TraceProblem.TOO_LARGE),
        (broken, TraceProblem.UNREACHABLE),
    ],
    ids=lambda value: value.value if isinstance(value, TraceProblem) else "",
)  # fmt: skip
async def test_any_answer_of_a_backend_is_a_calm_page(
    answer: Answer,
    problem: TraceProblem,
    backend: LoopbackTraces,
    tenant: ConsoleTenant,
    session: Session,
) -> None:
    fields = await session.refresh()
    backend.answers[fields.trace_id] = answer
    async with open_in_process(tenant, traces_url=backend.url) as browser:
        page = await read(
            browser, f"/sessions/{session.session_id}/trace", status=503 if problem.is_failure else 200
        )
    words = words_for(problem)
    assert words.sentence in page.text
    assert words.advice in page.text
    assert fields.trace_id in page.text
    assert f"/sessions/{session.session_id}/trace" in page.links, "a way to reload"
    assert "of the backend <script>" not in page.text
    assert "Traceback" not in page.text


async def test_a_backend_that_is_away_and_one_that_is_not_configured(
    tenant: ConsoleTenant, session: Session
) -> None:
    (port,) = free_ports(1)
    path = f"/sessions/{session.session_id}/trace"
    async with open_in_process(tenant, traces_url=f"http://{LOOPBACK}:{port}/{{trace_id}}") as browser:
        assert "The backend of the traces cannot be reached." in (await read(browser, path, status=503)).text
    async with open_in_process(tenant) as browser:
        page = await read(browser, path)
    assert "This console does not know where the traces are." in page.text
    assert "CONSOLE_TRACES_URL" in page.text


def settings(url: str) -> ConsoleSettings:
    names = ("session", "transcript", "model_router", "attachment_blob", "hook")
    return ConsoleSettings(traces_url=url, **{f"{name}_target": "127.0.0.1:1" for name in names})  # type: ignore[arg-type]


async def test_a_backend_that_does_not_end_its_answer_is_too_slow(backend: LoopbackTraces) -> None:
    backend.answers["ab" * 16] = endless
    with pytest.raises(TraceUnavailable) as raised:
        await TraceBackend(settings(backend.url), seconds=0.2).fetch("ab" * 16)
    assert raised.value.problem is TraceProblem.TOO_SLOW


@pytest.mark.parametrize(
    "trace_id", ["", "AB" * 16, "../secret", "ab" * 15 + "/.", "{trace_id}", "ab" * 16 + "\n"]
)
async def test_only_a_trace_id_is_asked_for(backend: LoopbackTraces, trace_id: str) -> None:
    backend.requests.clear()
    with pytest.raises(TraceUnavailable) as raised:
        await TraceBackend(settings(backend.url)).fetch(trace_id)
    assert raised.value.problem is TraceProblem.NO_TRACE
    assert backend.requests == []
