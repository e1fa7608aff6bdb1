"""The family of a session: its root, and all that descends from it."""

import asyncio
from collections.abc import Sequence

from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session
from spawnmesh_core.errors import NotFound

from spawnmesh_console.clients.session_pages import session_page
from spawnmesh_console.domain.families import LaneMember
from spawnmesh_console.domain.states import session_state

MAX_MEMBERS = 100
_MAX_DEPTH = 32
_CALLS_AT_ONCE = 8


async def family_of(mesh: Mesh, session: Session) -> list[LaneMember]:
    """Return the family, parents before their children and older ones first.

    Of a large family, the first members by depth: one more than a hundred, to show that there are
    more.
    """
    root = await _root_of(mesh, session)
    children: dict[str, list[Session]] = {}
    level, count, at_once = [root], 1, asyncio.Semaphore(_CALLS_AT_ONCE)
    while level and count <= MAX_MEMBERS:
        found = await asyncio.gather(*(_children(mesh, one.session_id, at_once) for one in level))
        for parent, some in zip(level, found, strict=True):
            children[parent.session_id] = some[: max(0, MAX_MEMBERS + 1 - count)]
            count += len(children[parent.session_id])
        level = [child for parent in level for child in children[parent.session_id]]
    return list(_in_order(root, children, 0))


def _in_order(session: Session, children: dict[str, list[Session]], depth: int) -> Sequence[LaneMember]:
    members = [_member(session, depth)]
    for child in children.get(session.session_id, ()):
        members += _in_order(child, children, depth + 1)
    return members


async def _root_of(mesh: Mesh, session: Session) -> Session:
    """Return the oldest ancestor that is not deleted."""
    for _ in range(_MAX_DEPTH):
        if not session.parent_session_id:
            break
        try:
            session = await mesh.session(session.parent_session_id)
        except NotFound:
            break
    return session


async def _children(mesh: Mesh, session_id: str, at_once: asyncio.Semaphore) -> list[Session]:
    async with at_once:
        page = await session_page(
            mesh,
            filter=f"parent_session_id = {session_id}",
            order_by="create_time",
            page_size=MAX_MEMBERS + 1,
        )
    return page.sessions


def _member(session: Session, depth: int) -> LaneMember:
    run = session.latest_run
    usage = run.usage if run is not None else None
    assert session.create_time is not None
    return LaneMember(
        session.session_id,
        session.label or session.session_id,
        session.agent_id,
        depth,
        session_state(session.state.value, run.state.value if run is not None else ""),
        usage.input_token_count + usage.output_token_count if usage is not None else 0,
        usage.cost_micros if usage is not None else 0,
        run.output_file_count if run is not None else 0,
        (run.queue_time if run is not None else None) or session.create_time,
        run.start_time if run is not None else None,
        run.end_time if run is not None else session.end_time,
    )
