"""The list of sessions: its filter, its pages, and the texts in it."""

import asyncio

import httpx2
import pytest
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import Agent
from spawnmesh_client.session import Session
from spawnmesh_client.wire import connect_wire
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP
from tests.support.console.html import Page, read_html
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import ConsoleTenant, SignedIn, read
from tests.support.waiting import eventually

ROWS = {"accept": "text/html-fragment"}
LABELS = (
    "plain",
    "plain text",
    'with "quotes"',
    "it's",
    "back\\slash",
    'ends in \\"',
    "\\\\",
    'x" OR "1',
    'plain" AND state = "ACTIVE',
    "*",
    "AND",
    "a AND b",
    "(plain)",
    "50 % & more = <b>",
    "größer 日本語 🙂",
    MARKUP,
)


async def held_back(console: RunningConsole, tenant: ConsoleTenant) -> Session:
    """Let one run hold the only place of the tenant: those of later sessions stay queued."""
    target = console.stack.targets["session"]
    async with connect_wire(session=target, token=console.stack.admin_token()) as operator:
        settings = tenant_pb2.TenantSettings(max_running_run_count=1)
        await operator.update_tenant(tenant.tenant_id, ["settings.max_running_run_count"], settings=settings)
    holder = await tenant.mesh.spawn("Count.", model="scripted/slow", label="holder")

    async def runs() -> bool:
        run = (await holder.refresh()).latest_run
        return run is not None and run.state.value == "RUNNING"

    await eventually(runs)
    return holder


async def spawn_all(mesh: Mesh, *labels: str) -> list[Session]:
    """Spawn sessions, and kill them before they say anything."""
    sessions = [await mesh.spawn("Wait.", label=label, model="scripted/slow") for label in labels]
    await asyncio.gather(*(session.kill() for session in sessions))
    return sessions


def listed(page: Page) -> list[str]:
    """Return the ids of the sessions in the list, in its order."""
    return [link.removeprefix("/sessions/") for link in page.links if link.startswith("/sessions/ses_")]


async def test_an_empty_list_says_how_to_begin(signed_in: SignedIn) -> None:
    person = await signed_in(ClientRole.READER)
    page = await read(person, "/sessions")
    assert "There are no sessions yet. Spawn the first one." in page.text
    assert "/start" in page.links
    assert (await person.get("/")).headers["location"] == "/start"


async def test_sessions_are_listed_newest_first(mesh: Mesh, signed_in: SignedIn) -> None:
    older = await mesh.spawn("Say hello.", label="older")
    await older.result()
    newer = await mesh.spawn("Say hello.")
    await newer.kill()
    person = await signed_in(ClientRole.READER)
    page = await read(person, "/sessions")
    assert listed(page) == [newer.session_id, older.session_id]
    for shown in ("older", older.session_id, "succeeded", "killed", "KILLED", "default"):
        assert shown in page.text
    assert (await person.get("/")).headers["location"] == "/sessions"
    rows = read_html((await person.get("/sessions?part=rows", headers=ROWS)).text)
    assert listed(rows) == listed(page)
    assert not rows.forms


async def test_the_label_of_the_form_is_compared_as_it_was_typed(mesh: Mesh, signed_in: SignedIn) -> None:
    sessions = dict(zip(LABELS, await spawn_all(mesh, *LABELS), strict=True))
    person = await signed_in()
    form = (await read(person, "/sessions")).form("/sessions")
    assert form.method == "get"
    for label, session in sessions.items():
        answer = await person.get(form.action, params={**form.fields, "label": label})
        page = read_html(answer.text)
        assert (answer.status_code, listed(page)) == (200, [session.session_id]), label
        assert page.form("/sessions").fields["label"] == label
        # The refreshed rows and a reload are of the same sessions.
        (refreshed,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
        rows = await person.get(refreshed, headers=ROWS)
        assert listed(read_html(rows.text)) == [session.session_id], label
    nothing = await person.get("/sessions", params={"label": "no such label"})
    assert "No session fulfils these conditions" in read_html(nothing.text).text


async def test_each_field_narrows_the_list(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.agents.put(Agent("clerk", "Be short."))
    done = await mesh.spawn("Say hello.", agent="clerk", label="a", metadata={"ticket": "17"})
    await done.result()
    (killed,) = await spawn_all(mesh, "a")
    person = await signed_in()

    async def found(**fields: str) -> set[str]:
        answer = await person.get("/sessions", params=fields)
        page = read_html(answer.text)
        assert answer.status_code == 200, page.text
        for name, value in fields.items():
            if name != "since":
                assert page.form("/sessions").fields[name] == value
        assert ("Clear" in page.text) == bool(fields)
        return set(listed(page))

    both = {done.session_id, killed.session_id}
    assert await found() == both
    assert await found(label="a") == both
    assert await found(state="SUCCEEDED") == {done.session_id}
    assert await found(state="KILLED") == {killed.session_id}
    assert await found(state="QUEUED") == set()
    assert await found(agent="clerk") == {done.session_id}
    assert await found(reason="KILLED") == {killed.session_id}
    assert await found(expression='metadata.ticket = "17"') == {done.session_id}
    assert await found(expression="agent_id != clerk AND label = a") == {killed.session_id}
    assert await found(label="a", agent="clerk", state="SUCCEEDED", expression="metadata.ticket:*") == {
        done.session_id
    }
    assert await found(agent="clerk", state="KILLED") == set()
    assert await found(since="2020-01-31T00:00:00Z") == both
    assert await found(since="2999-01-31T00:00:00Z") == set()
    options = [one["value"] for one in (await read(person, "/sessions")).tags("option")]
    assert "clerk" in options


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"expression": "state ="}, "expected a value after ="),
        ({"expression": "x = 1 OR y = 2"}, "OR is not supported"),
        ({"expression": ') OR (label = "a'}, "parentheses are not supported"),
        ({"expression": 'AND label = "<b>'}, "expected the name of a field"),
        ({"expression": "nothing = 1"}, "there is no field nothing"),
        ({"expression": "a\0b"}, "expected one of"),
        ({"reason": 'NO" OR "1', "label": "kept"}, "is compared with a reason of the mesh"),
        ({"state": "NONE", "agent": "kept"}, "run_state is compared with one of"),
        ({"since": "yesterday", "label": "<kept>"}, "is compared with a time"),
        ({"label": "nul \0"}, "must not contain NUL"),
        ({"page_token": "nonsense", "label": "kept"}, "page_token"),
    ],
)
async def test_a_wrong_filter_is_explained_and_the_input_is_kept(
    fields: dict[str, str], words: str, signed_in: SignedIn
) -> None:
    person = await signed_in()
    answer = await person.get("/sessions", params=fields)
    page = read_html(answer.text)
    assert answer.status_code == 400
    assert words in page.text
    form = page.form("/sessions").fields
    for name, value in fields.items():
        if name in form and name != "state":
            assert form[name] == value
    assert not [one for one in page.tags("div") if "data-refresh" in one], "a wrong filter is not repeated"
    assert "No session fulfils" not in page.text


async def test_a_filter_that_is_too_long_is_refused_in_words(signed_in: SignedIn) -> None:
    person = await signed_in()
    for fields in ({"label": "x" * 9_000}, {"expression": " AND ".join(["label = a"] * 40)}):
        answer = await person.get("/sessions", params=fields)
        assert answer.status_code == 400
        assert 'role="alert"' in answer.text


async def test_older_sessions_are_on_further_pages(
    console: RunningConsole, tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    holder = await held_back(console, tenant)
    spawned = await asyncio.gather(*(mesh.spawn("Wait.", label="many & more") for _ in range(53)))
    expected = [one.session_id async for one in mesh.sessions('label = "many & more"')]
    person = await signed_in(ClientRole.READER)
    address, seen, pages = "/sessions?label=many+%26+more&state=QUEUED", [], 0
    while True:
        page = await read(person, address)
        seen += listed(page)
        pages += 1
        form = page.form("/sessions").fields
        assert (form["label"], form["state"]) == ("many & more", "QUEUED")
        older = [link for link in page.links if "page_token=" in link]
        is_refreshed = any("data-refresh" in one for one in page.tags("div"))
        assert is_refreshed == (pages == 1), "a page that people read on does not change under their eyes"
        assert ("Newest" in page.text) == (pages > 1)
        if not older:
            break
        assert "Older" in page.text
        (address,) = older
    newest = next(link for link in page.links if "label=" in link)
    assert listed(await read(person, newest)) == seen[:50]
    assert (pages, len(seen)) == (2, 53)
    assert seen == expected
    await asyncio.gather(*(one.kill() for one in (*spawned, holder)))


async def test_a_child_is_marked(mesh: Mesh, signed_in: SignedIn) -> None:
    parent = await mesh.spawn("Say hello.", mode="SESSION")
    child = await mesh.spawn("Say hello.", parent=parent)
    await asyncio.gather(parent.result(), child.result())
    page = await read(await signed_in(), "/sessions")
    assert listed(page) == [child.session_id, parent.session_id]
    assert page.text.count(" child ") == 1


async def test_roles_that_may_not_list_are_sent_to_the_sign_in_with_words(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    answer = await visitor.post("/sign-in", data={"token": tenant.token(ClientRole.NONE)})
    assert answer.status_code == 403
    assert "role" in read_html(answer.text).text
