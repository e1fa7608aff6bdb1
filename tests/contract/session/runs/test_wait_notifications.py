"""Calls that wait for a session are woken when it may be done, and not by each of its events."""

from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.listener import Subscription, open_listener
from spawnmesh_session.store import events

from tests.support.session.calls import fail
from tests.support.session.harness import Mesh


async def test_WaitSession__is_woken_by_the_end_and_not_by_the_claim(
    mesh: Mesh, migrated: dict[str, ServiceDsn]
) -> None:
    session_id = (await mesh.spawn()).session_id
    watched = events.payload_of(mesh.tenant, session_id)
    done = events.done_payload_of(mesh.tenant, session_id)
    dsn = migrated["session"].app
    async with open_listener(dsn, name="test waits", channels=(events.CHANNEL,)) as listener:
        with listener.subscription(events.CHANNEL, watched, done) as changed:
            await woken(changed)  # By the listener, when it is connected.
            held = await mesh.claim(session_id)
            assert await woken(changed) == {watched}
            await fail(mesh, held)
            came: set[str] = set()
            while done not in came:
                came |= await woken(changed)


async def woken(changed: Subscription) -> set[str]:
    """Wait for a notification, and return the payloads that came."""
    assert await changed.wait(60)
    return changed.take_payloads()
