"""ListSessions by filter, order and view: which sessions come, in which order, and with what."""

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains


async def pages_of(mesh: Mesh, held: run_pb.ClaimedRun | None = None, **asked: Any) -> list[list[str]]:
    """Return the labels of each page, as a client or as the run."""
    request, pages = pb.ListSessionsRequest(**asked), list[list[str]]()
    while not pages or request.page_token:
        call = mesh.sessions.ListSessions
        page = await (mesh.client(call, request) if held is None else mesh.run(held, call, request))
        pages.append([session.label for session in page.sessions])
        request.page_token = page.next_page_token
    return pages


async def labels(mesh: Mesh, filter: str = "", **asked: Any) -> list[str]:
    return [label for page in await pages_of(mesh, filter=filter, **asked) for label in page]


async def refusal(mesh: Mesh, **asked: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(**asked))
    return caught.value


async def fail(mesh: Mesh, session: session_pb2.Session, reason: str) -> None:
    held = await mesh.claim(session.session_id)
    request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_number(reason))
    await mesh.run(held, mesh.runs.FailRun, request)


async def various(mesh: Mesh) -> dict[str, session_pb2.Session]:
    """Spawn sessions of every state, by their labels, from the oldest to the newest."""
    await mesh.put_agent(AgentProfile(agent_id="clerk"))
    found = {"failed": await mesh.spawn(label="failed")}
    await fail(mesh, found["failed"], "TURN_LIMIT_EXCEEDED")
    found["killed"] = await mesh.spawn(label="killed", agent_id="clerk")
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=found["killed"].session_id))
    found["open"] = await mesh.spawn(label="open", mode=session_pb2.SESSION_MODE_SESSION)
    await fail(mesh, found["open"], "NO_PROGRESS")
    found["queued"] = await mesh.spawn(
        label="queued", parent_session_id=found["open"].session_id, metadata={"ticket": "17", "a.b": ""}
    )
    twice = [attachment("a.txt"), attachment("a.txt")]
    with pytest.raises(MeshError):
        await mesh.spawn(label="undone", agent_id="clerk", attachments=twice, metadata={"ticket": "18"})
    return found


EXPECTED = {
    "": ["undone", "queued", "open", "killed", "failed"],
    "state = ACTIVE": ["queued", "open"],
    "state != ACTIVE": ["undone", "killed", "failed"],
    "state = SESSION_STATE_SPAWN_FAILED": ["undone"],
    "state = ACTIVE AND state = CLOSED": [],
    "run_state = QUEUED": ["queued"],
    "run_state = FAILED AND state = ACTIVE": ["open"],
    "run_state != KILLED": ["queued", "open", "failed"],
    "run_state:*": ["queued", "open", "killed", "failed"],
    "agent_id = clerk": ["undone", "killed"],
    "agent_id != clerk AND label != open": ["queued", "failed"],
    'label = "killed"': ["killed"],
    "label = kill": [],
    "label = killed AND label = failed": [],
    "failure_reason = TURN_LIMIT_EXCEEDED": ["failed"],
    "failure_reason = KILLED": ["killed"],
    "failure_reason = REASON_KILLED": ["killed"],
    "failure_reason:*": ["undone", "open", "killed", "failed"],
    "failure_reason = ATTACHMENTS_DUPLICATE_NAME": ["undone"],
    'failure_reason = ""': ["queued"],
    "parent_session_id:*": ["queued"],
    'parent_session_id = "" AND state = ACTIVE': ["open"],
    "parent_session_id = {open}": ["queued"],
    "parent_session_id = {killed}": [],
    "metadata.ticket = 17": ["queued"],
    "metadata.ticket = 17 AND metadata.ticket = 18": [],
    "metadata.ticket = 17 AND metadata.a.b:*": ["queued"],
    "metadata.ticket = 18 AND metadata.a.b:*": [],
    "metadata.ticket != 17": ["undone"],
    "metadata.ticket != 17 AND metadata.ticket != 18": [],
    "metadata.ticket:*": ["undone", "queued"],
    'metadata."a.b" = ""': ["queued"],
    "end_time:*": ["undone", "killed", "failed"],
    "create_time > {killed_time}": ["undone", "queued", "open"],
    "create_time >= {killed_time} AND create_time <= {open_time}": ["open", "killed"],
    "create_time = {killed_time}": ["killed"],
    "create_time < {failed_time}": [],
    "end_time < {open_time}": ["killed", "failed"],
    "end_time > {open_time}": ["undone"],
}


async def test_ListSessions__the_sessions_that_fulfil_all_comparisons(mesh: Mesh) -> None:
    sessions = await various(mesh)
    names = {label: session.session_id for label, session in sessions.items()}
    times = {f"{label}_time": _text_of(session) for label, session in sessions.items()}
    found = {text: await labels(mesh, text.format(**names, **times)) for text in EXPECTED}
    assert found == EXPECTED
    oldest = {
        text: await labels(mesh, text.format(**names, **times), order_by="create_time", page_size=1)
        for text in EXPECTED
    }
    assert oldest == {text: expected[::-1] for text, expected in EXPECTED.items()}


def _text_of(session: session_pb2.Session) -> str:
    return session.create_time.ToJsonString()


async def test_ListSessions__a_run_filters_its_family_and_nothing_else(mesh: Mesh) -> None:
    parent = await mesh.spawn(label="parent")
    await mesh.spawn(label="stranger")
    held = await mesh.claim(parent.session_id)
    child = await mesh.spawn_as(held, label="child")
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=child.session_id))
    expected = {
        "state = ACTIVE": ["parent"],
        "label = stranger": [],
        "label = child": ["child"],
        "label:*": ["child", "parent"],
        "failure_reason = KILLED": ["child"],
        "end_time:*": ["child"],
    }
    found = {
        text: [label for page in await pages_of(mesh, held, filter=text, page_size=1) for label in page]
        for text in expected
    }
    assert found == expected
    assert await pages_of(mesh, held, filter="label:*", order_by="create_time") == [["parent", "child"]]
    ended = await pages_of(mesh, held, filter="end_time:*", order_by="end_time desc", page_size=1)
    assert ended == [["child"]]


async def test_ListSessions__by_the_ends_page_by_page(mesh: Mesh, remains: Remains) -> None:
    spawned = [await mesh.spawn(label=f"{number}") for number in range(6)]
    for session in spawned[:5]:
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    first_end = datetime.fromisoformat("2026-01-31T12:00:00Z")
    # The ends are not in the order of the ids, and two are at the same time.
    for label, minutes in (("0", 4), ("1", 2), ("2", 3), ("3", 2), ("4", 1)):
        async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
            await link.execute(
                "update session.sessions set end_time = %s where tenant_id = %s and label = %s",
                (first_end + timedelta(minutes=minutes), mesh.tenant, label),
            )
    by_end: dict[str, Any] = {"order_by": "end_time  desc", "page_size": 1}
    assert await labels(mesh, "end_time:*", **by_end) == ["0", "2", "3", "1", "4"]
    assert await labels(mesh, "end_time > 2026-01-31T12:02:00Z", **by_end) == ["0", "2"]
    assert await labels(mesh, "end_time <= 2026-01-31T12:02:00Z", **by_end) == ["3", "1", "4"]
    assert await labels(mesh, "end_time < 2026-01-31T12:02:00Z", **by_end) == ["4"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown field": ({"filter": "colour = red"}, "filter", "at character 1: there is no field colour"),
    "an unknown state": ({"filter": "label:* AND state = OPEN"}, "filter", "at character 13: state is"),
    "another type": ({"filter": "create_time > yesterday"}, "filter", "a time as in RFC 3339"),
    "OR": ({"filter": "state = ACTIVE OR label = a"}, "filter", "at character 16: OR is not supported"),
    "nesting": ({"filter": "(" * 2000}, "filter", "at character 1: parentheses"),
    "a long filter": ({"filter": f'label = "{"x" * 4096}"'}, "filter", "4096"),
    "no end time": ({"order_by": "end_time desc"}, "order_by", "a filter that compares end_time"),
    "no index": ({"order_by": "label"}, "order_by", "'create_time desc', 'create_time', 'end_time desc'"),
    "two orders": ({"order_by": "create_time, label"}, "order_by", "'create_time desc'"),
    "a view": ({"view": 9}, "view", "defined"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_ListSessions__a_refusal_names_the_field_and_what_is_allowed(mesh: Mesh, name: str) -> None:
    asked, field, description = REFUSED[name]
    error = await refusal(mesh, **asked)
    assert error.reason is Reason.INVALID_REQUEST
    [violation] = error.violations
    assert violation.field == field
    assert description in violation.description


@pytest.mark.parametrize(
    "changed",
    [{"filter": "label != x"}, {"order_by": "create_time desc"}, {"view": 2}],
    ids=lambda one: next(iter(one)),
)
async def test_ListSessions__a_token_is_good_for_its_filter_order_and_view(
    mesh: Mesh, changed: dict[str, Any]
) -> None:
    for _ in range(2):
        await mesh.spawn(label="a")
    request = pb.ListSessionsRequest(filter="label = a", page_size=1)
    page = await mesh.client(mesh.sessions.ListSessions, request)
    assert page.next_page_token
    asked = {"filter": "label = a", "page_token": page.next_page_token, **changed}
    assert [one.field for one in (await refusal(mesh, **asked)).violations] == ["page_token"]


async def test_ListSessions__the_basic_view_has_no_results_and_no_files(mesh: Mesh, remains: Remains) -> None:
    spawned = await mesh.spawn(attachments=[attachment("a.txt"), attachment("b.txt")])
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        set_result = "update session.runs set result_text = 'An answer.' where tenant_id = %s"
        await link.execute(set_result, (mesh.tenant,))
    own = f'label = "" AND create_time = {_text_of(spawned)}'
    full = await listed(mesh, filter=own, view=session_pb2.SESSION_VIEW_FULL)
    assert full == [await mesh.get(spawned.session_id)]
    assert full[0].latest_run.result_text == "An answer."
    assert [file.name for file in full[0].receipt.files] == ["a.txt", "b.txt"]
    full[0].latest_run.ClearField("result_text")
    full[0].receipt.ClearField("files")
    assert full[0].receipt.count == 2
    assert await listed(mesh, filter=own, view=session_pb2.SESSION_VIEW_BASIC) == full
    assert await listed(mesh, filter=own) == full


async def listed(mesh: Mesh, **asked: Any) -> list[session_pb2.Session]:
    answer = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest(**asked))
    return list(answer.sessions)
