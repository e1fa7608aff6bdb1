"""The page of one session: its transcript, family, events and files, and what a person can do."""

import re
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT
from spawnmesh_client import Attachment
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session
from spawnmesh_client.views import RunState
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import read_html
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.said import append, ended_session, said
from tests.support.console.visitors import (
    ConsoleTenant,
    SignedIn,
    form_key,
    open_tenant,
    read,
    sign_in,
    stranger,
)
from tests.support.waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
PAGE = b"<!doctype html><script>alert(1)</script>"
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \u202egnp.exe \U000e0041hidden \x00"


def path_of(session: Session, rest: str = "") -> str:
    return f"/sessions/{session.session_id}{rest}"


async def test_page_shows_what_was_said_and_what_happened(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh, "Say hello to Ada.", label="greeting", metadata={"ticket": "17"})  # type: ignore[arg-type]
    answer = (await session.result()).text
    page = await read(await signed_in(), path_of(session))
    assert page.title.startswith("greeting")
    for shown in (
        "Say hello to Ada.", answer, "succeeded", session.session_id, session.trace_id, "ticket 17",
        "The spawn was requested.", "The run was taken by a runner.", "The run succeeded.",
    ):  # fmt: skip
        assert shown in page.text
    marks = [one["class"] for one in page.tags("li") if one.get("id", "").startswith("e-")]
    assert [mark for mark in marks if "is-final" in mark] == marks[-1:], "the last entry is the answer"
    [live] = [one["data-live"] for one in page.tags("ol") if "data-live" in one]
    assert live.startswith(path_of(session, "/live?after_event="))


async def test_hostile_text_stays_text_and_is_seen(
    mesh: Mesh, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh, HOSTILE.replace("\x00", ""), label="<b>bold</b>")
    await append(tenant, session, said(HOSTILE.replace("\x00", ""), role=ROLE_ASSISTANT))
    client = await signed_in()
    html = (await client.get(path_of(session))).text
    page = read_html(html)
    scripts = {one.get("src") for one in page.tags("script")}
    assert all(src and src.startswith("/static/") for src in scripts)
    assert not page.tags("b")
    assert "<b>bold</b>" in page.text
    assert page.text.count("<script>alert(1)</script>") >= 3
    for character in "\x1b\u202e\U000e0041":
        assert character not in html
    assert "␛[31mred␛[0m ⟨U+202E⟩gnp.exe ⟨U+E0041⟩hidden" in page.text


async def test_long_text_is_cut_and_can_be_had_whole(
    mesh: Mesh, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    long = "<i>" + "word " * 200_000
    seq = await append(tenant, session, said(long))
    client = await signed_in()
    answer = await client.get(path_of(session))
    assert len(answer.text) < 60_000
    page = read_html(answer.text)
    assert "There is more. All of the entry" in page.text
    whole = await client.get(path_of(session, f"/entries/{seq}/text"))
    assert whole.text == long
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["content-security-policy"] == "default-src 'none'; sandbox"


async def test_a_page_of_a_long_transcript_leads_to_the_others(
    mesh: Mesh, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    newest = 0
    for begin in range(0, 260, 130):
        newest = await append(tenant, session, *(said(f"number {n};") for n in range(begin, begin + 130)))
    client = await signed_in()
    page = await read(client, path_of(session))
    assert "number 259;" in page.text
    assert "number 150;" not in page.text
    numbers = set[int]()
    earlier: str | None = path_of(session)
    while earlier:
        page = await read(client, earlier)
        numbers |= {int(found) for found in re.findall(r"number (\d+);", page.text)}
        earlier = next((path_of(session, link) for link in page.links if link.startswith("?before=")), None)
    assert numbers == set(range(260))
    first = newest - 259
    page = await read(client, path_of(session, f"?at={first + 100}"))
    assert f"e-{first + 100}" in {one.get("id") for one in page.tags("li")}
    assert not [one for one in page.tags("ol") if "data-live" in one], "an old page does not grow"
    assert path_of(session) in page.links


@pytest.mark.parametrize(
    ("name", "content", "view"),
    [
        ("page.html", PAGE, "application/octet-stream"),
        ("lies.png", PAGE, "application/octet-stream"),
        ("vector.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", "application/octet-stream"),
        ("ünï (1) é.png", PNG, "image/png"),
        ("empty.txt", b"", "application/octet-stream"),
    ],
)  # fmt: skip
async def test_files_are_stored_and_only_pictures_are_shown(
    mesh: Mesh, signed_in: SignedIn, name: str, content: bytes, view: str
) -> None:
    file = Attachment(name, content)
    session = await mesh.spawn("Look.", mode="SESSION", attachments=[file])
    client = await signed_in()
    page = await read(client, path_of(session))
    assert name in page.text
    stored = await client.get(path_of(session, "/files/0"))
    assert stored.content == content
    assert stored.headers["content-type"] == "application/octet-stream"
    assert stored.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    shown = await client.get(path_of(session, "/files/0?view=1"))
    assert shown.content == content
    assert shown.headers["content-type"] == view
    for answer in (stored, shown):
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
    for missing in ("/files/1", "/files/99999999"):
        await read(client, path_of(session, missing), status=404)


async def test_pictures_of_entries_are_shown_if_they_are_pictures(
    mesh: Mesh, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    first = await append(tenant, session, said(image=PNG))
    second = await append(tenant, session, said(image=PAGE))
    client = await signed_in()
    page = await read(client, path_of(session))
    assert path_of(session, f"/entries/{first}/images/0") in {one["src"] for one in page.tags("img")}
    shown = await client.get(path_of(session, f"/entries/{first}/images/0"))
    assert (shown.headers["content-type"], shown.content) == ("image/png", PNG)
    lie = await client.get(path_of(session, f"/entries/{second}/images/0"))
    assert lie.headers["content-type"] == "application/octet-stream"
    assert lie.headers["content-disposition"].startswith("attachment")
    for missing in (f"/entries/{first}/images/1", f"/entries/{second + 1}/images/0"):
        await read(client, path_of(session, missing), status=404)


async def test_family_has_a_lane_for_each_member(mesh: Mesh, signed_in: SignedIn) -> None:
    root = await ended_session(mesh, label="root")
    child = await ended_session(mesh, label="child", parent=root.session_id)
    grandchild = await ended_session(mesh, label="grandchild", parent=child.session_id)
    client = await signed_in()
    for session in (root, child, grandchild):
        page = await read(client, path_of(session))
        family = await read(client, path_of(session, "?part=family"))
        others = {path_of(one) for one in (root, child, grandchild)} - {path_of(session)}
        assert others <= {*page.links}
        assert {*family.links} == others
        assert len(family.tags("svg")) >= 3
        assert re.search(r"root.*child.*grandchild", family.text)


async def test_message_is_sent_once(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    client = await signed_in()
    fields = (await read(client, path_of(session))).form(path_of(session, "/message")).fields
    fields["text"] = "And now say goodbye."
    for _ in range(2):
        answer = await client.post(path_of(session, "/message"), data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, path_of(session, "?done=sent"))
    await session.result(120)
    messages = [entry.text async for entry in session.transcript() if entry.role == "USER"]
    assert messages.count("And now say goodbye.") == 1
    assert "The message was sent." in (await read(client, path_of(session, "?done=sent"))).text


async def test_message_that_is_refused_stays_in_the_form(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    client = await signed_in()
    key = await form_key(client)
    await session.kill()
    answer = await client.post(
        path_of(session, "/message"),
        data={"form_key": key, "request_id": uuid4().hex, "text": "Too late <b>"},
    )
    page = read_html(answer.text)
    assert answer.status_code == 409
    assert [one for one in page.tags("p") if one.get("role") == "alert"]
    assert "closed" in page.text.lower()


async def test_session_can_be_killed_while_its_transcript_is_away(
    stack: Stack, tenant: ConsoleTenant, visitors: AsyncExitStack
) -> None:
    session = await ended_session(tenant.mesh)
    lonely = await start_console(
        stack, stack.data_dir / "console-blind", "console-blind", {"TRANSCRIPT_TARGET": "127.0.0.1:9"}
    )
    client = await visitors.enter_async_context(stranger(lonely))
    await sign_in(client, tenant.token())
    page = await read(client, path_of(session))
    assert "A part of this page is missing: transcript" in page.text
    assert "The run succeeded." in page.text
    form = page.form(path_of(session, "/kill"))
    assert (await client.post(form.action, data=form.fields)).status_code == 303
    assert (await session.refresh()).state.is_terminal


async def test_run_is_interrupted_and_the_session_stays(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await mesh.spawn("Count.", mode="SESSION", model="scripted/slow")
    client = await signed_in()

    async def running() -> bool:
        return (await session.refresh()).latest_run.state is RunState.RUNNING  # type: ignore[union-attr]

    await eventually(running, within_seconds=60)
    form = (await read(client, path_of(session))).form(path_of(session, "/interrupt"))
    answer = await client.post(form.action, data=form.fields)
    assert answer.headers["location"] == path_of(session, "?done=interrupted")

    async def interrupted() -> bool:
        return (await session.refresh()).latest_run.state is RunState.INTERRUPTED  # type: ignore[union-attr]

    await eventually(interrupted, within_seconds=60)
    page = await read(client, path_of(session))
    assert "interrupted" in page.text
    assert path_of(session, "/interrupt") not in {form.action for form in page.forms}
    assert path_of(session, "/message") in {form.action for form in page.forms}


async def test_family_is_killed_only_by_its_form(mesh: Mesh, signed_in: SignedIn) -> None:
    root = await ended_session(mesh)
    child = await ended_session(mesh, parent=root.session_id)
    client = await signed_in()
    refused = await client.post(path_of(root, "/kill"), data={"form_key": "x"})
    assert refused.status_code == 403
    assert not (await root.refresh()).state.is_terminal
    form = (await read(client, path_of(root))).form(path_of(root, "/kill"))
    assert (await client.post(form.action, data=form.fields)).status_code == 303
    for session in (root, child):
        assert (await session.refresh()).state.is_terminal
        assert not [form for form in (await read(client, path_of(session))).forms if "kill" in form.action]


async def test_reader_sees_no_actions_and_is_refused(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    client = await signed_in(ClientRole.READER)
    page = await read(client, path_of(session))
    assert {form.action for form in page.forms} == {"/sign-out"}
    fields = {"form_key": await form_key(client), "text": "hello", "request_id": uuid4().hex}
    for action in ("/message", "/interrupt", "/kill"):
        refused = await client.post(path_of(session, action), data=fields)
        assert refused.status_code == 403
        assert "ROLE_MISSING" in refused.text
    assert (await session.refresh()).latest_run == session.latest_run


async def test_another_tenant_finds_nothing(
    mesh: Mesh, tenant: ConsoleTenant, console: RunningConsole
) -> None:
    session = await mesh.spawn("Look.", mode="SESSION", attachments=[Attachment("a", b"a")])
    seq = await append(tenant, session, said(image=PNG))
    async with open_tenant(console) as other, stranger(console) as client:
        await sign_in(client, other.token())
        for rest in (
            "",
            "?part=family",
            "/live",
            "/files/0",
            f"/entries/{seq}/text",
            f"/entries/{seq}/images/0",
        ):
            assert (await client.get(path_of(session, rest))).status_code == 404, rest
        key = await form_key(client)
        for action in ("/message", "/interrupt", "/kill"):
            refused = await client.post(path_of(session, action), data={"form_key": key, "text": "x"})
            assert refused.status_code == 404
    assert not (await session.refresh()).state.is_terminal


async def test_failed_run_says_why_in_one_sentence(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await mesh.spawn("Say hello.", model="nope/nope")

    async def failed() -> bool:
        return (await session.refresh()).state.is_terminal

    await eventually(failed, within_seconds=60)
    page = await read(await signed_in(), path_of(session))
    run = (await session.refresh()).latest_run
    assert run is not None
    assert f"UNKNOWN_MODEL {run.error_message} after 1 attempt" in page.text


async def test_nonsense_in_the_address_is_no_error_of_ours(signed_in: SignedIn) -> None:
    client = await signed_in()
    for path in ("/sessions/ses_x", "/sessions/..%2f..", f"/sessions/ses_{'0' * 26}", "/sessions/%00"):
        assert (await client.get(path)).status_code in (400, 404), path
