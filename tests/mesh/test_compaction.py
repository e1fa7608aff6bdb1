"""A run whose context fills its budget continues from a summary that the router's model wrote."""

from spawnmesh_devstack.stack import Stack

from tests.support.mesh.compaction import continue_from_summary


async def test_long_conversation_continues_from_a_summary(stack: Stack) -> None:
    await continue_from_summary(stack)
