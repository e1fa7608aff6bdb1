"""ResumePlugin."""

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.hook.fixtures import SPAWN, HookMesh, Tenant, refused
from tests.support.hook.scripted_plugin import deny as denied


async def test_ResumePlugin__the_plugin_is_called_again_and_an_unknown_one_is_refused(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(denied("no"))
    await tenant.register("a", plugin.endpoint, SPAWN)
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="a"))
    for _ in range(2):
        resumed = await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="a"))
        assert not resumed.plugin.paused
        assert (await tenant.spawn()).decision == denied("no")
    with refused(Reason.NOT_FOUND):
        await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="b"))
