"""`/storage` and `/storage/files`: the transcripts and the files that a tenant stores, and what a role
may do.
"""

from urllib.parse import quote

import httpx2
import psycopg
import pytest
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.client import Mesh
from spawnmesh_console.domain.amounts import size_text
from spawnmesh_console.domain.operations import OperationKind
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page, read_html
from tests.support.console.published import file_of, publishing_session
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.said import ended_session
from tests.support.console.stored import (
    done_operation,
    dry_run_of_tiering,
    session_with_old_results,
    set_transcripts,
    size_of,
)
from tests.support.console.visitors import (
    ConsoleTenant,
    SignedIn,
    form_key,
    open_tenant,
    read,
    sign_in,
    stranger,
)

LIST, FILES = "/storage", "/storage/files"
OTHER_ROLES = [ClientRole.READER, ClientRole.USER]
# Rows like that of a session, as many as two pages have.
COPIES = """
insert into transcript.transcripts
select (jsonb_populate_record(source, jsonb_build_object('session_id', 'ses_' || lpad(n::text, 26, '0')))).*
from transcript.transcripts as source, generate_series(1, 55) as n
where source.tenant_id = %s and source.session_id = %s
"""


def forms_of_storage(page: Page) -> list[str]:
    """Return the paths of all forms that change something."""
    return [
        form.action for form in page.forms if form.action.startswith("/storage") and form.method == "post"
    ]


def action_of(session_id: str, name: str) -> str:
    """Return the path of a form of a transcript."""
    return f"/storage/transcripts/{session_id}/{name}"


async def test_without_transcripts_the_pages_say_so(signed_in: SignedIn) -> None:
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, LIST)
    assert "There are no transcripts yet." in page.text
    assert "Newest operations" not in page.text
    assert {LIST, FILES, "/storage/operations"} <= {*page.links}, "the navigation and the tabs lead here"
    assert "No file is stored." in (await read(reader, FILES)).text
    assert "There are no operations." in (await read(reader, "/storage/operations")).text


async def test_the_list_says_where_the_bytes_of_each_transcript_are(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    small, large = await ended_session(mesh), await session_with_old_results(tenant)
    await set_transcripts(tenant, stub_large_tool_payloads=True)
    await done_operation(mesh, OperationKind.TIER, large.session_id)
    sizes = [await size_of(mesh, one.session_id) for one in (small, large)]
    moved = sizes[1].logical_bytes - sizes[1].stored_bytes
    assert moved > 10_000
    page = await read(await signed_in(ClientRole.READER), LIST)
    for size, left in zip(
        sizes, ("– –", f"{size_text(moved)} {100 * moved // sizes[1].logical_bytes} %"), strict=True
    ):
        row = (
            f"{size.session_id} {size.entry_count} {size.token_count:,} {size_text(size.logical_bytes)} "
            f"{size_text(size.stored_bytes)} {left}"
        )
        assert row in page.text
        assert f"/sessions/{size.session_id}" in page.links
    whole = sum(one.logical_bytes for one in sizes)
    in_sum = f"Transcripts 2 Entries {sum(one.entry_count for one in sizes)} Size {size_text(whole)}"
    assert (
        f"{in_sum} In PostgreSQL {size_text(whole - moved)} In the blob store {size_text(moved)}" in page.text
    )


async def test_the_sum_of_a_page_is_not_that_of_the_tenant(
    stack: Stack, tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as database:
        await database.execute(COPIES, (tenant.tenant_id, session.session_id))
    reader = await signed_in(ClientRole.READER)
    first = await read(reader, LIST)
    assert "On this page 50 transcripts" in first.text
    (later,) = [link for link in first.links if "page_token=" in link]
    assert "First" not in first.text
    second = await read(reader, later)
    assert "On this page 6 transcripts" in second.text
    assert session.session_id in second.text
    assert session.session_id not in first.text
    assert LIST in second.links
    assert "Later" not in second.text
    shown = {link for page in (first, second) for link in page.links if link.startswith("/sessions/ses_")}
    assert len(shown) == 56, "each transcript is on one page"


async def test_a_page_of_the_list_stays_that_page_while_it_is_renewed(
    mesh: Mesh, signed_in: SignedIn
) -> None:
    sessions = sorted([(await ended_session(mesh)).session_id for _ in range(2)])
    peer = mesh.wire.service("transcript")
    answer = await peer.unary(
        StorageServiceStub(peer.channel).ListTranscripts, pb.ListTranscriptsRequest(page_size=1)
    )
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, f"{LIST}?page_token={quote(answer.next_page_token)}")
    assert "On this page 1 transcript Entries" in page.text
    (renewed,) = [
        one for one in (e.attributes.get("data-refresh", "") for e in page.elements) if "rows" in one
    ]
    rows = await read(reader, renewed)
    assert sessions[1] in rows.text
    assert sessions[0] not in rows.text


@pytest.mark.parametrize("path", [LIST, FILES, "/storage/operations"])
async def test_a_token_of_another_list_is_a_problem_of_the_page(path: str, signed_in: SignedIn) -> None:
    page = await read(await signed_in(), f"{path}?page_token=nonsense", status=400)
    assert "page_token" in page.text
    assert len([one for one in page.tags("p") if one.get("role") == "alert"]) == 1
    assert path in page.links


async def test_files_are_listed_with_their_sessions(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    files = [Attachment(f"notes {number}.txt", b"x" * 1000) for number in range(5)]
    spawned = await mesh.spawn("Say hello.", mode="SESSION", attachments=files)
    hostile = file_of("r '&amp;{{ 7+42 }}.txt", b"y" * 2048, "text/html")
    publishing, (published,) = await publishing_session(tenant, [hostile])
    page = await read(await signed_in(ClientRole.READER), FILES)
    assert "Sets 2 Files 6 Size 6.9 KiB" in page.text
    assert "notes 0.txt, notes 1.txt, notes 2.txt and 2 more attached to a spawn" in page.text
    assert published.set_id in page.text
    assert "r '&amp;{{ 7+42 }}.txt published" in page.text
    assert {f"/sessions/{one.session_id}" for one in (spawned, publishing)} <= {*page.links}


@pytest.mark.parametrize("role", OTHER_ROLES)
async def test_other_roles_see_no_action_and_are_refused(
    role: ClientRole, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    operation = await dry_run_of_tiering(mesh, session.session_id)
    person = await signed_in(role)
    for path in (LIST, FILES, "/storage/operations", f"/storage/operations/{operation}"):
        assert forms_of_storage(await read(person, path)) == []
    assert "Your token has the role" in (await read(person, LIST)).text
    data = {"form_key": await form_key(person)}
    paths = [action_of(session.session_id, name) for name in ("tier", "revert", "recount")]
    paths += [f"/storage/operations/{operation}/{name}" for name in ("confirm", "cancel")]
    for path in paths:
        answer = await person.post(path, data=data)
        assert answer.status_code == 403, (path, answer.text)
        assert "The mesh refused this" in answer.text
    assert len([one async for one in mesh.operations.list()]) == 1


async def test_a_tenant_sees_and_changes_nothing_of_another(
    console: RunningConsole, signed_in: SignedIn
) -> None:
    async with open_tenant(console) as other:
        files = [Attachment("theirs.txt", b"x")]
        session = await other.mesh.spawn("Say hello.", mode="SESSION", attachments=files)
        await session.result(120)
        operation = await dry_run_of_tiering(other.mesh, session.session_id)
        operator = await signed_in()
        for path in (LIST, f"{LIST}?part=rows", f"{LIST}?part=operations", FILES, "/storage/operations"):
            text = (await read(operator, path)).text
            assert session.session_id not in text
            assert "theirs.txt" not in text
        await read(operator, f"/storage/operations/{operation}", status=404)
        await read(operator, f"/storage/operations/{operation}?part=state", status=404)
        data = {"form_key": await form_key(operator)}
        paths = [action_of(session.session_id, name) for name in ("tier", "revert", "recount")]
        paths += [f"/storage/operations/{operation}/{name}" for name in ("confirm", "cancel")]
        for path in paths:
            assert (await operator.post(path, data=data)).status_code == 404, path
        assert len([one async for one in other.mesh.operations.list()]) == 1


async def test_pages_say_which_service_is_away(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    targets = {"TRANSCRIPT_TARGET": "127.0.0.1:9"}
    lonely = await start_console(stack, stack.data_dir / "console-storeless", "console-storeless", targets)
    async with stranger(lonely) as client:
        await sign_in(client, tenant.token())
        for path in (LIST, "/storage/operations", "/storage/operations/opr_1"):
            page = await read(client, path, status=503)
            assert "A service does not answer" in page.text
            assert "transcript" in page.text
        assert "No file is stored." in (await read(client, FILES)).text, "another service has the files"
        answer = await client.post(
            action_of("ses_" + "0" * 26, "tier"), data={"form_key": await form_key(client)}
        )
        assert answer.status_code == 503
        assert "It is not known whether it was done." in read_html(answer.text).text
