"""Promises sets to live sessions."""

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetState, require_visible, wrong_state


class Attaching:
    """STAGED -> ATTACHED."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def attach(self, tenant_id: str, set_id: str) -> AttachmentSet:
        """The set, ATTACHED. Raises NOT_FOUND, and ATTACHMENT_SET_STATE for one that was released."""
        async with self._database.transaction(tenant_id) as connection:
            await store.attach_set(connection, tenant_id, set_id)
            found = await store.get_set(connection, tenant_id, set_id)
        if found is not None and found.state is SetState.RELEASED:
            raise wrong_state(set_id, found.state)
        return require_visible(found, set_id)
