"""`/storage/operations`: operations are started once, followed, confirmed after a dry run, and
cancelled.
"""

import httpx2
import psycopg
import pytest
from google.rpc import status_pb2
from spawnmesh.audit.v1 import audit_service_pb2 as audit_pb
from spawnmesh_client.audit import list_audit_events
from spawnmesh_client.client import Mesh
from spawnmesh_client.compaction import compact_transcript
from spawnmesh_client.operations import Operation
from spawnmesh_client.session import Session
from spawnmesh_console.domain.operations import OperationKind
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.held import held_transcripts, operations_done
from tests.support.console.html import Page, read_html
from tests.support.console.said import ended_session
from tests.support.console.stored import (
    done_operation,
    dry_run_of_tiering,
    session_with_old_results,
    set_transcripts,
    size_of,
)
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read
from tests.support.waiting import eventually

OPERATIONS = "/storage/operations"
FAILED = (
    "update transcript.operations set error = %s, response = null where tenant_id = %s and operation_id = %s"
)
COPIES = """
insert into transcript.operations
select (jsonb_populate_record(source, jsonb_build_object(
    'operation_id', 'opr_' || lpad(n::text, 26, '0'), 'request_id', 'r' || n))).*
from transcript.operations as source, generate_series(1, 30) as n where source.tenant_id = %s
"""


async def press(client: httpx2.AsyncClient, page: str, action: str, **more: str) -> str:
    """Send a form of the page, and return the path of the operation that it leads to."""
    answer = await client.post(action, data={**(await read(client, page)).form(action).fields, **more})
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    assert path.startswith(f"{OPERATIONS}/opr_"), path
    return path


def action_of(session: Session, name: str) -> str:
    """Return the path of a form of a transcript."""
    return f"/storage/transcripts/{session.session_id}/{name}"


async def ended(client: httpx2.AsyncClient, path: str) -> Page:
    """Wait until the page has nothing to keep up to date, and return it."""

    async def page() -> Page | None:
        found = await read(client, path)
        return found if all("data-refresh" not in one.attributes for one in found.elements) else None

    return await eventually(page)


async def operations_of(mesh: Mesh) -> list[Operation]:
    """Return all operations, newest first."""
    return [one async for one in mesh.operations.list()]


async def test_tiering_is_shown_before_it_is_done_and_can_be_undone(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await session_with_old_results(tenant)
    await set_transcripts(tenant, stub_large_tool_payloads=True)
    before = await size_of(mesh, session.session_id)
    operator = await signed_in()
    path = await press(operator, "/storage", action_of(session, "tier"))
    seen = await ended(operator, path)
    assert "Dry run of tiering State done" in seen.text
    assert "3 entries" in seen.text.partition("Would go to the blob store")[2]
    assert "Nothing was changed." in seen.text
    assert f"/sessions/{session.session_id}" in seen.links
    assert await size_of(mesh, session.session_id) == before
    done = await ended(operator, await press(operator, path, f"{path}/confirm"))
    assert "Tiering State done" in done.text
    assert "Left PostgreSQL" in done.text
    assert "by ada" in done.text
    after = await size_of(mesh, session.session_id)
    assert after.stored_bytes < before.stored_bytes
    assert after.logical_bytes == before.logical_bytes
    back = await ended(operator, await press(operator, "/storage", action_of(session, "revert")))
    assert "Return to PostgreSQL State done" in back.text
    assert "Back in PostgreSQL" in back.text
    assert await size_of(mesh, session.session_id) == before
    offered = {form.action for form in (await read(operator, "/storage")).forms}
    assert action_of(session, "revert") not in offered, "nothing is left to move back"


async def test_a_dry_run_that_finds_nothing_has_nothing_to_confirm(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    operator = await signed_in()
    page = await ended(operator, await press(operator, "/storage", action_of(session, "tier")))
    assert "There is nothing to do: no large payload can leave PostgreSQL." in page.text
    fields = {"dry_run": "1"}
    page = await ended(operator, await press(operator, "/storage", action_of(session, "recount"), **fields))
    assert "There is nothing to do: all entries were counted by this vocabulary." in page.text
    assert not [form for form in page.forms if form.action.startswith("/storage")]


async def test_a_tenant_without_tiering_is_told_why_nothing_moves(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await session_with_old_results(tenant, 1)
    path = f"{OPERATIONS}/{await dry_run_of_tiering(mesh, session.session_id)}"
    operator = await signed_in()
    form = (await read(operator, path)).form(f"{path}/confirm")
    answer = await operator.post(form.action, data=form.fields)
    assert answer.status_code == 409
    assert "the tenant has stub_large_tool_payloads off" in answer.text
    assert "Dry run of tiering" in answer.text, "the page of the dry run stays"
    assert len(await operations_of(mesh)) == 1


async def test_a_compaction_that_a_client_started_is_shown(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await session_with_old_results(tenant, 1)
    compacted = await compact_transcript(mesh.wire.service("transcript"), session.session_id)
    operator = await signed_in()
    [operation] = await operations_of(mesh)
    page = await read(operator, f"{OPERATIONS}/{operation.name.rpartition('/')[2]}")
    assert "Compaction State done" in page.text
    assert f"Summarized {compacted.summarized_entry_count} entries" in page.text
    assert compacted.summarized_entry_count == operation.done_count == operation.total_count > 2


async def test_only_a_dry_run_can_be_confirmed(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    recount = await done_operation(mesh, OperationKind.RECOUNT, session.session_id)
    operator = await signed_in()
    path = f"{OPERATIONS}/{recount.name.rpartition('/')[2]}"
    assert f"{path}/confirm" not in {form.action for form in (await read(operator, path)).forms}
    answer = await operator.post(f"{path}/confirm", data={"form_key": await form_key(operator)})
    assert answer.status_code == 409
    assert "This operation is no dry run" in answer.text
    assert len(await operations_of(mesh)) == 1


async def test_a_recount_counts_by_the_vocabulary_of_the_settings(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    await set_transcripts(tenant, token_vocabulary="cl100k_base")
    operator = await signed_in()
    path = await press(operator, "/storage", action_of(session, "recount"), dry_run="1")
    seen = await ended(operator, path)
    assert "Dry run of a recount State done" in seen.text
    assert "Vocabulary cl100k_base" in seen.text
    assert "would be" in seen.text
    done = await ended(operator, await press(operator, path, f"{path}/confirm"))
    assert "Recount of tokens State done" in done.text
    again = await ended(operator, await press(operator, "/storage", action_of(session, "recount")))
    assert "Recount of tokens State done" in again.text
    assert "Counted by another vocabulary" not in again.text, "all are counted by it now"


async def test_a_form_that_is_sent_twice_starts_one_operation(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    operator = await signed_in()
    form = (await read(operator, "/storage")).form(action_of(session, "tier"))
    answers = [await operator.post(form.action, data=form.fields) for _ in range(2)]
    assert len({one.headers["location"] for one in answers}) == 1
    assert len(await operations_of(mesh)) == 1


async def test_an_operation_is_cancelled_and_says_so(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    operator, reader = await signed_in(), await signed_in(ClientRole.READER)
    async with held_transcripts(tenant):
        await set_transcripts(tenant, token_vocabulary="cl100k_base")
        path = await press(operator, "/storage", action_of(session, "recount"))
        assert "Newest operations" in (await read(reader, "/storage")).text
        shown = await read(reader, path)
        assert f"{path}?part=state" in {one.attributes.get("data-refresh") for one in shown.elements}
        assert f"{path}/cancel" not in {form.action for form in shown.forms}
        assert await press(operator, path, f"{path}/cancel") == path
        assert "cancelled" in (await read(operator, path)).text
        assert f"{path}/cancel" not in {form.action for form in (await read(operator, path)).forms}
    await operations_done(tenant)
    page = await ended(operator, path)
    assert "State cancelled" in page.text or "State done" in page.text, "its last step may have run"
    icons = {one["class"] for one in page.tags("svg")}
    assert {"icon icon-stopped", "icon icon-succeeded"} & icons, "the state has a shape"


async def test_what_a_person_starts_is_in_the_audit_log(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    operator = await signed_in()
    path = await press(operator, "/storage", action_of(session, "tier"))

    async def recorded() -> bool:
        request = audit_pb.ListAuditEventsRequest(method="TierTranscript")
        events = await list_audit_events(mesh.wire.service("transcript"), request, limit=10)
        return any(path.rpartition("/")[2] in str(one) and one.subject == "ada" for one in events)

    await eventually(recorded)


async def test_the_error_of_an_operation_is_harmless(
    stack: Stack, tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    operation = await dry_run_of_tiering(mesh, session.session_id)
    error = status_pb2.Status(code=5, message=f"hostile {MARKUP} {UNSEEN} {'w' * 5000}").SerializeToString()
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as database:
        await database.execute(FAILED, (error, tenant.tenant_id, operation))
    reader = await signed_in(ClientRole.READER)
    for path in ("/storage", OPERATIONS, f"{OPERATIONS}/{operation}"):
        page = await read(reader, path)
        assert "failed" in page.text
        assert f"hostile {MARKUP}" in page.text
        assert not {*UNSEEN} & {*page.text}
        most = 1000 if path.endswith(operation) else 200
        assert "w" * (most + 1) not in page.text, "a long error is cut"


async def test_operations_are_on_pages_and_filtered_by_state(
    stack: Stack, tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await ended_session(mesh)
    newest = await dry_run_of_tiering(mesh, session.session_id)
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as database:
        await database.execute(COPIES, (tenant.tenant_id,))
    reader = await signed_in(ClientRole.READER)
    first = await read(reader, f"{OPERATIONS}?state=done")
    assert len([link for link in first.links if link.startswith(f"{OPERATIONS}/opr_")]) == 25
    assert f"{OPERATIONS}/{newest}" in first.links
    (older,) = [link for link in first.links if "page_token=" in link]
    assert "state=done" in older
    second = await read(reader, older)
    assert len([link for link in second.links if link.startswith(f"{OPERATIONS}/opr_")]) == 6
    assert "Newest" in second.text
    assert "Older" not in second.text
    assert "No operation is open." in (await read(reader, f"{OPERATIONS}?state=open")).text
    newest_ones = [link for link in (await read(reader, "/storage")).links if "/opr_" in link]
    assert len(newest_ones) == 3


@pytest.mark.parametrize("operation_id", ["opr_" + "0" * 26, "opr_1", "a%2Fb", "%00", "é", "x" * 500])
async def test_an_operation_that_does_not_exist_is_a_refusal(operation_id: str, signed_in: SignedIn) -> None:
    answer = await (await signed_in()).get(f"{OPERATIONS}/{operation_id}")
    assert answer.status_code in (400, 404)
    assert operation_id not in read_html(answer.text).text or operation_id.startswith("opr_")
