"""A tenant of its own for a test."""

from uuid import uuid4

from spawnmesh_client.wire import connect_wire as connect
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from spawnmesh_devstack.stack import Stack

from tests.support.waiting import eventually


async def new_tenant(stack: Stack) -> str:
    """Create a tenant and return its id. A service that an earlier test took away comes back."""
    name = f"t-{uuid4().hex[:12]}"

    async def created() -> bool:
        try:
            await operator.create_tenant(name)
        except MeshError as error:
            if error.status is not Status.UNAVAILABLE:
                raise
            return False
        return True

    async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await eventually(created)
    return name
