"""`/sessions/…/trace`: the trace of a session as a waterfall, from a backend of all tenants' traces."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from spawnmesh_client.session import Session
from spawnmesh_core.spans import Span
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.html import Page
from tests.support.console.in_process import open_in_process
from tests.support.console.running_console import RunningConsole
from tests.support.console.trace_backends import LoopbackTraces, open_trace_backend, otlp_body
from tests.support.console.trace_spans import named, traced
from tests.support.console.visitors import ConsoleTenant, SignedIn, open_tenant, read
from tests.support.waiting import eventually

SECRET = "what-the-other-tenant-does"
RPC = "spawnmesh.transcript.v1.TranscriptService/AppendEntries"


@pytest.fixture
async def backend() -> AsyncIterator[LoopbackTraces]:
    async with open_trace_backend() as opened:
        yield opened


@pytest.fixture
async def browser(tenant: ConsoleTenant, backend: LoopbackTraces) -> AsyncIterator[httpx2.AsyncClient]:
    """Sign a person in at a console that reads from the backend."""
    async with open_in_process(tenant, traces_url=backend.url) as client:
        yield client


@pytest.fixture
async def session(tenant: ConsoleTenant) -> Session:
    """Return a session that has ended."""
    spawned = await tenant.mesh.spawn("Say hello.")
    await spawned.result(120)
    return await spawned.refresh()


def address(session: Session) -> str:
    return f"/sessions/{session.session_id}/trace"


def spans_of(tenant: ConsoleTenant) -> list[Span]:
    """Return a spawn with one call, and a step that fails."""
    own = tenant.tenant_id
    return [
        named("spawn", "", own, end=100, name="spawnmesh.session.v1.SessionService/SpawnSession"),
        traced("call", "spawn", start=10, end=60, name=RPC, kind="client"),
        named("append", "call", own, start=30, end=40, name=RPC, service="transcript"),
        traced("step", "spawn", start=70, end=90, name="step", status="error", error__type="NOT_FOUND"),
    ]  # fmt: skip


def rows_of(page: Page) -> list[str]:
    """Return the names of the rows, as `service name`."""
    return [one["title"] for one in page.tags("th") if "title" in one]


async def test_the_trace_of_a_spawn_comes_from_the_sink_of_the_mesh(
    tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await tenant.mesh.spawn("Say hello.")
    await session.result(120)
    reader = await signed_in(ClientRole.READER)

    async def complete() -> Page | None:
        page = await read(reader, address(session))
        is_complete = "session run default" in page.text and "are not here" not in page.text
        return page if is_complete else None

    page = await eventually(complete)
    rows = rows_of(page)
    assert rows[0] == "session SpawnSession"
    assert {"session run default", "runner invoke_agent default", "model-router chat agent"} <= {*rows}
    assert {one.split()[0] for one in rows} >= {"session", "runner", "transcript", "model-router"}
    assert session.trace_id in page.text
    assert f"spawnmesh trace {session.session_id}" in page.text
    assert re.search(
        r"The slowest call between services: [a-z-]+ → [a-z-]+ \w+, [\d.]+ m?s on the way", page.text
    )
    assert "The session is running" not in page.text
    lanes = [
        one
        for one in page.tags("rect")
        if one.get("class", "").startswith("bar service-") and "%" in one["width"]
    ]
    assert len(lanes) == len(rows)
    assert [one for one in page.tags("rect") if one.get("class") == "path"]
    assert address(session) in (await read(reader, f"/sessions/{session.session_id}")).links

    every = await read(reader, f"{address(session)}?spans=every")
    assert len(rows_of(every)) > len(rows)
    assert address(session) in every.links


async def test_the_picture_and_its_sentences(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    backend.put(session.trace_id, spans_of(tenant))
    page = await read(browser, address(session))
    assert rows_of(page) == ["session SpawnSession", "transcript AppendEntries", "session step"]
    assert "Total time 100 ms" in page.text
    assert "Spans 3 of 4" in page.text
    assert (
        "The slowest call between services: session → transcript AppendEntries, 40 ms on the way."
        in page.text
    )
    assert "The call took 50 ms, and the called service worked on it for 10 ms." in page.text
    assert "session SpawnSession 70 ms 70 %" in page.text
    assert "failed NOT_FOUND" in page.text
    assert [one["class"] for one in page.tags("rect") if one.get("class") == "bar is-failed" and "x" in one]
    every = await read(browser, f"{address(session)}?spans=every")
    assert rows_of(every)[1] == "session AppendEntries"
    assert "Spans 4" in every.text


async def test_spans_of_other_tenants_and_of_other_traces_are_not_shown(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    foreign = [
        named("foreign", "spawn", "globex", end=9_000, name=SECRET, service=SECRET),
        traced("inside", "foreign", end=9_000, name=SECRET, service=SECRET, gen_ai__request__model=SECRET),
        traced("nobodys", "elsewhere", end=9_000, name=SECRET, service=SECRET),
    ]
    mine = [replace(one, trace_id=session.trace_id) for one in [*spans_of(tenant), *foreign]]
    backend.answers[session.trace_id] = otlp_body(
        [*mine, traced("other", "", end=9_000, name=SECRET, service=SECRET)]
    )
    for query in ("", "?spans=every"):
        answer = await browser.get(f"{address(session)}{query}")
        assert answer.status_code == 200
        assert SECRET not in answer.text
        assert "100 ms" in answer.text, "the axis is that of the tenant's spans"
    backend.put(session.trace_id, foreign)
    page = await read(browser, address(session))
    assert SECRET not in page.text
    assert "No span of this trace is there yet." in page.text


async def test_the_mesh_alone_names_the_trace(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    other = "ef" * 16
    backend.put(other, [replace(one, name=SECRET) for one in spans_of(tenant)])
    for query in (f"trace_id={other}", f"trace={other}&id={other}", "spans=every&session_id=ses_0"):
        page = await read(browser, f"{address(session)}?{query}")
        assert SECRET not in page.text
    assert {path for path, _ in backend.requests} == {f"/api/v3/traces/{session.trace_id}"}


async def test_the_backend_is_not_asked_for_a_session_of_another_tenant(
    backend: LoopbackTraces, console: RunningConsole, tenant: ConsoleTenant, session: Session
) -> None:
    backend.put(session.trace_id, [replace(one, name=SECRET) for one in spans_of(tenant)])
    async with (
        open_tenant(console) as other,
        open_in_process(other, traces_url=backend.url) as outsider,
    ):
        page = await read(outsider, address(session), status=404)
        assert SECRET not in page.text
        assert session.trace_id not in page.text
    assert backend.requests == []


async def test_a_reader_sees_the_trace_and_a_stranger_does_not(
    backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    token = tenant.token(ClientRole.READER)
    async with open_in_process(tenant, token, traces_url=backend.url) as reader:
        await read(reader, address(session))
    backend.requests.clear()
    async with open_in_process(tenant, traces_url=backend.url) as stranger:
        stranger.cookies.clear()
        assert (await stranger.get(address(session))).status_code == 303
    assert backend.requests == []


async def test_names_in_spans_are_text_and_contents_are_not_shown(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    hostile = f"{MARKUP} {UNSEEN} {'long ' * 200}"
    spans = [
        replace(one, name=f"{one.span_id} {hostile}", service=hostile, status_message=f"message {SECRET}")
        for one in spans_of(tenant)
    ]
    contents = {
        "gen_ai.input.messages": SECRET,
        "gen_ai.system_instructions": SECRET,
        "exception.message": SECRET,
    }
    facts = {"error.type": hostile, "gen_ai.request.model": hostile, "gen_ai.tool.name": hostile}
    spans.append(traced("facts", "spawn", end=99, name="facts", **contents, **facts))
    backend.put(session.trace_id, spans)
    for query in ("", "?spans=every"):
        text = (await browser.get(f"{address(session)}{query}")).text
        assert not {*UNSEEN} & {*text}
        assert SECRET not in text
        assert len(text) < 100_000
        page = await read(browser, f"{address(session)}{query}")
        assert {one.get("src") for one in page.tags("script")} == {"/static/console.js"}
        assert not page.tags("img")
        assert not [one for one in page.elements if "style" in one.attributes or "onerror" in one.attributes]
        assert "490063" not in page.text.replace(",", "")
        assert MARKUP in page.text


async def test_thousands_of_spans_are_a_page_of_the_longest(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant, session: Session
) -> None:
    chats = [
        traced(f"chat {n}", "spawn", start=n % 90, end=n % 90 + 9, name=f"chat {n}") for n in range(2_500)
    ]
    backend.put(session.trace_id, [*spans_of(tenant), *chats])
    page = await read(browser, address(session))
    assert len(rows_of(page)) == 300
    assert "Spans 300 of 2,504" in page.text
    assert "Only the longest 300 spans are shown" in page.text


async def test_a_run_that_goes_on_is_not_complete(
    browser: httpx2.AsyncClient, backend: LoopbackTraces, tenant: ConsoleTenant
) -> None:
    session = await (await tenant.mesh.spawn("Say it slowly.", model="scripted/slow")).refresh()
    backend.put(session.trace_id, spans_of(tenant)[2:3])
    page = await read(browser, address(session))
    assert "The session is running, and a span arrives after its end" in page.text
    assert address(session) in page.links, "a way to reload"
    await session.kill()
    page = await read(browser, address(session))
    assert "The spans above one span are not here." in page.text


@pytest.mark.parametrize(("status", "is_said"), [("PARTIAL", True), ("COMPLETE", False)])
async def test_a_backend_that_left_spans_out_is_believed(
    status: str,
    is_said: bool,
    browser: httpx2.AsyncClient,
    backend: LoopbackTraces,
    tenant: ConsoleTenant,
    session: Session,
) -> None:
    body = otlp_body(replace(one, trace_id=session.trace_id) for one in spans_of(tenant))
    backend.answers[session.trace_id] = body.replace(
        b'{"result":', f'{{"status":"{status}","trace":'.encode()
    )
    page = await read(browser, address(session))
    assert rows_of(page)[0] == "session SpawnSession"
    assert ("The backend of the traces has left out a part" in page.text) == is_said


async def test_headers_for_the_backend_are_those_of_the_file_as_it_is_now(
    backend: LoopbackTraces, tenant: ConsoleTenant, session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer first\nX-Scope-OrgID:  mesh \n\n")
    async with open_in_process(tenant, traces_url=backend.url, traces_headers_file=file) as browser:
        await read(browser, address(session))
        file.write_text("Authorization: Bearer second\n")
        await read(browser, address(session))
        file.unlink()
        page = await read(browser, address(session), status=503)
        assert "The backend of the traces could not answer." in page.text
    sent = [(headers.get("authorization"), headers.get("x-scope-orgid")) for _, headers in backend.requests]
    assert sent == [("Bearer first", "mesh"), ("Bearer second", None)]
    assert not [one for _, headers in backend.requests for one in headers if one == "cookie"]
