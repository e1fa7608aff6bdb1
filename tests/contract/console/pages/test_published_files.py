"""The files that the runs of a session have published: on its page, on pages of their own, and live."""

import re
from contextlib import aclosing

import httpx2
import psycopg
import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client import Attachment
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session
from spawnmesh_client.wire import connect_wire
from spawnmesh_console.pages import session as session_page
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page
from tests.support.console.in_process import open_in_process
from tests.support.console.published import file_of, held_run, publishing_session
from tests.support.console.running_console import RunningConsole
from tests.support.console.said import ended_session
from tests.support.console.streams import stream_events
from tests.support.console.visitors import ConsoleTenant, SignedIn, open_tenant, read, sign_in, stranger

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
SCRIPT = b"<!doctype html><script>alert(1)</script>"


def path_of(session: Session, rest: str = "") -> str:
    return f"/sessions/{session.session_id}{rest}"


def downloads_of(page: Page) -> list[str]:
    return [link for link in page.links if re.fullmatch(r"/sessions/\w+/published/\w+/files/\d+", link)]


async def test_page_lists_each_set_with_its_run_and_files(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    contents = [b"figure,amount\nsum,7\n", b"The report.", b"n" * 2048]
    report = [file_of("figures.csv", contents[0], "text/csv"), file_of("ünï (1) é.md", contents[1])]
    session, published = await publishing_session(tenant, report, [file_of("notes.txt", contents[2])])
    client = await signed_in()
    page = await read(client, path_of(session))
    run_id = published[0].run_id
    assert re.search(
        rf"Published files \S.* by {run_id} figures\.csv 20 B · text/csv ünï \(1\) é\.md 11 B "
        rf"\S.* by {run_id} notes\.txt 2\.0 KiB Events ",
        page.text,
    ), page.text
    assert page.text.count("The run published files. Look at them") == 2
    assert "2 files, 31 bytes" in page.text
    files = downloads_of(page)
    assert [(await client.get(file)).content for file in files] == contents
    for one in published:
        assert path_of(session, f"/published/{one.set_id}") in page.links
        shown = await read(client, path_of(session, f"/published/{one.set_id}"))
        assert [file for file in files if one.set_id in file] == downloads_of(shown)
        assert run_id in shown.text


async def test_a_session_without_published_files_shows_nothing_of_them(
    mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    client = await signed_in()
    page = await read(client, path_of(session))
    assert "published" not in page.text.lower()
    assert (await client.get(path_of(session, "?part=published"))).text.strip() == ""
    assert (
        "No run of this session has published files."
        in (await read(client, path_of(session, "/published"))).text
    )


async def test_list_is_read_only_for_a_session_that_may_have_published(
    tenant: ConsoleTenant, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without published files costs no call, and a later run does not hide earlier ones."""
    without = await ended_session(tenant.mesh)
    earlier, _ = await publishing_session(tenant, [file_of("early.txt")])
    await earlier.send("Once more.")
    async with held_run(tenant, earlier):
        pass
    run = (await earlier.refresh()).latest_run
    assert run is not None
    assert run.output_file_count == 0
    asked = []
    read_page = session_page.output_set_page

    async def noted(mesh: Mesh, session_id: str, **more: str) -> object:
        asked.append(session_id)
        return await read_page(mesh, session_id, **more)

    monkeypatch.setattr(session_page, "output_set_page", noted)
    async with open_in_process(tenant) as client:
        await read(client, path_of(without))
        assert asked == []
        assert "early.txt" in (await read(client, path_of(earlier))).text
        assert asked == [earlier.session_id]
        async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as connection:
            await connection.execute(
                "delete from session.session_events where session_id = %s and number < 7",
                [earlier.session_id],
            )
        page = await read(client, path_of(earlier))
    assert "The run published files." not in page.text
    assert "early.txt" in page.text, "old events are removed, and files stay"


async def test_names_and_types_stay_text(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    names = ["{{ 7+42 }}.txt", "'&amp; &lt;b&gt;.txt", "empty\u2800shape.txt", "a" * 251 + ".txt"]
    hostile = [file_of(name, mime_type="<script>alert(1)</script>\u115f") for name in names]
    session, (published,) = await publishing_session(tenant, hostile)
    client = await signed_in()
    for rest in ("", "?part=published", "/published", f"/published/{published.set_id}"):
        page = await read(client, path_of(session, rest))
        for shown in ("{{ 7+42 }}.txt", "'&amp; &lt;b&gt;.txt", "empty⟨U+2800⟩shape.txt", names[3]):
            assert shown in page.text, rest
        assert page.text.count("<script>alert(1)</script>⟨U+115F⟩") == len(names)
        assert {one.get("src", "")[:8] for one in page.tags("script")} <= {"/static/"}
        assert not page.tags("b")
        assert len(downloads_of(page)) == len(names)
    names_of = {file: (await client.get(file)).headers["content-disposition"] for file in downloads_of(page)}
    assert all(re.fullmatch(r"attachment; filename\*=UTF-8''[\w.%~-]+", one) for one in names_of.values())
    assert "emptyshape.txt" in str(names_of)


@pytest.mark.parametrize(
    ("name", "content", "mime_type", "view"),
    [
        ("page.html", SCRIPT, "text/html", "application/octet-stream"),
        ("lies.png", SCRIPT, "image/png", "application/octet-stream"),
        ("vector.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", "image/svg+xml",
         "application/octet-stream"),
        ("picture.png", PNG, "image/png", "image/png"),
        ("empty.txt", b"", "", "application/octet-stream"),
    ],
)  # fmt: skip
async def test_files_are_stored_and_only_pictures_are_shown(
    tenant: ConsoleTenant, signed_in: SignedIn, name: str, content: bytes, mime_type: str, view: str
) -> None:
    session, (published,) = await publishing_session(tenant, [file_of(name, content, mime_type)])
    client = await signed_in()
    [file] = downloads_of(await read(client, path_of(session)))
    stored, shown = await client.get(file), await client.get(f"{file}?view=1")
    assert stored.headers["content-type"] == "application/octet-stream"
    assert stored.headers["content-disposition"] == f"attachment; filename*=UTF-8''{name}"
    assert shown.headers["content-type"] == view
    for answer in (stored, shown):
        assert answer.content == content
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
    for missing in ("/files/1", "/files/99999999"):
        await read(client, path_of(session, f"/published/{published.set_id}{missing}"), status=404)


async def test_a_large_set_is_shown_in_parts(
    console: RunningConsole, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    await _allow_files(console, tenant, 450)
    names = [f"part-{number}.txt" for number in range(450)]
    session, (published,) = await publishing_session(tenant, [file_of(name) for name in names])
    client = await signed_in()
    address = path_of(session, f"/published/{published.set_id}")
    page = await read(client, path_of(session))
    assert "All 450 files of this set 4.0 KiB" in page.text
    assert len(downloads_of(page)) == 10
    assert address in page.links
    found: list[str] = []
    places = []
    following: str | None = address
    while following:
        page = await read(client, following)
        found += re.findall(r"part-\d+\.txt", page.text)
        places += downloads_of(page)
        links = [link for link in page.links if link.startswith("?from=")]
        following = next((address + link for link in links if int(link[6:]) > int(_from(following))), None)
    assert found == names
    assert places == [f"{address}/files/{place}" for place in range(450)]
    assert "401 to 450 of 450" in page.text
    assert [link for link in page.links if link.startswith("?from=")] == ["?from=200"], "and back"
    assert "no file at this place" in (await read(client, f"{address}?from=450")).text


def _from(address: str) -> str:
    return address.partition("?from=")[2] or "0"


async def _allow_files(console: RunningConsole, tenant: ConsoleTenant, count: int) -> None:
    target, token = console.stack.targets["session"], console.stack.admin_token()
    settings = TenantSettings()
    settings.attachments.max_file_count = count
    async with connect_wire(session=target, token=token) as operator:
        await operator.update_tenant(
            tenant.tenant_id, ["settings.attachments.max_file_count"], settings=settings
        )


async def test_many_sets_are_on_pages_of_their_own(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    sets = [[file_of(f"version-{number}.txt")] for number in range(23)]
    session, published = await publishing_session(tenant, *sets)
    client = await signed_in()
    page = await read(client, path_of(session))
    assert "There is more. All published files" in page.text
    assert len(downloads_of(page)) == 10
    found = []
    following: str | None = path_of(session, "/published")
    while following:
        page = await read(client, following)
        found += downloads_of(page)
        later = [link for link in page.links if link.startswith("?page_token=")]
        following = path_of(session, f"/published{later[0]}") if later else None
    assert found == [path_of(session, f"/published/{one.set_id}/files/0") for one in published]
    assert (await client.get(path_of(session, "/published?page_token=nonsense"))).status_code == 400


async def test_stream_says_that_files_were_published(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session = await tenant.mesh.spawn("Publish.", runtime="EXTERNAL", mode="SESSION")
    client = await signed_in()
    page = await read(client, path_of(session))
    assert "Published files" not in page.text
    [live] = [one["data-live"] for one in page.tags("ol") if "data-live" in one]
    events = []
    async with held_run(tenant, session) as run, aclosing(stream_events(client, live)) as stream:
        one = await run.publish(file_of("live.txt"))
        async for event in stream:
            events.append(event)
            if event.name == "head" and event.data.get("published"):
                break
        line = events[-1].data["event"]
        assert path_of(session, f"/published/{one.set_id}") in line
        assert "The run published files." in line
        part = await read(client, path_of(session, "?part=published"))
        assert "live.txt" in part.text
        assert downloads_of(part) == [path_of(session, f"/published/{one.set_id}/files/0")]
    others = [event for event in events[:-1] if event.name == "head"]
    assert others
    assert not any(event.data.get("published") for event in others)


async def test_lane_of_a_child_has_the_number_of_its_files(
    tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    root = await ended_session(tenant.mesh, label="root")
    child, _ = await publishing_session(
        tenant, [file_of("a"), file_of("b")], [file_of("c")], label="child", parent=root.session_id
    )
    single, _ = await publishing_session(tenant, [file_of("d")], label="single", parent=root.session_id)
    page = await read(await signed_in(), path_of(root))
    assert "· 3 published files" in page.text
    assert re.search(r"· 1 published file\b", page.text)
    assert page.text.count("published file") == 2
    assert not downloads_of(page), "they are on the pages of the children"
    assert {path_of(child), path_of(single)} <= {*page.links}


async def test_reader_sees_and_downloads_them(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session, (published,) = await publishing_session(tenant, [file_of("report.txt", b"the report")])
    client = await signed_in(ClientRole.READER)
    for rest in ("", "/published", f"/published/{published.set_id}"):
        [file] = downloads_of(await read(client, path_of(session, rest)))
        assert (await client.get(file)).content == b"the report"


async def test_set_is_found_only_below_its_session(
    mesh: Mesh, tenant: ConsoleTenant, signed_in: SignedIn, console: RunningConsole
) -> None:
    session, (published,) = await publishing_session(tenant, [file_of("report.txt", b"secret")])
    other = await mesh.spawn("Look.", mode="SESSION", attachments=[Attachment("a", b"a")])
    assert other.receipt is not None
    client = await signed_in()
    for missing in (
        path_of(other, f"/published/{published.set_id}"),
        path_of(other, f"/published/{other.receipt.set_id}"),
        path_of(session, f"/published/att_{'0' * 26}"),
    ):
        await read(client, missing, status=404)
        await read(client, f"{missing}/files/0", status=404)
    assert (await client.get(path_of(session, "/published/nonsense"))).status_code == 400
    async with open_tenant(console) as others, stranger(console) as outsider:
        await sign_in(outsider, others.token())
        await _finds_nothing(outsider, session, published.set_id)


async def _finds_nothing(outsider: httpx2.AsyncClient, session: Session, set_id: str) -> None:
    for rest in ("?part=published", "/published", f"/published/{set_id}", f"/published/{set_id}/files/0"):
        answer = await outsider.get(path_of(session, rest))
        assert answer.status_code == 404, rest
        assert "secret" not in answer.text
        assert "report.txt" not in answer.text


async def test_deleted_session_leaves_no_published_file(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session, (published,) = await publishing_session(tenant, [file_of("report.txt")])
    client = await signed_in()
    [file] = downloads_of(await read(client, path_of(session)))
    await session.kill()
    assert (await client.get(file)).status_code == 200, "they stay when the session has ended"
    await session.delete()
    assert (await client.get(file)).status_code in (404, 409)
    await read(client, path_of(session, f"/published/{published.set_id}"), status=404)
