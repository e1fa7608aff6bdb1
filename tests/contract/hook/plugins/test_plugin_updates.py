"""UpdatePlugin changes the masked fields of a plugin, and none from an old etag."""

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.hook.fixtures import (
    CLOSED,
    CONTROL,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)

HERE = "grpc://127.0.0.1:7000"


async def change(tenant: Tenant, *paths: str, allow_missing: bool = False, **fields: Any) -> pb.Plugin:
    request = pb.UpdatePluginRequest(
        plugin=pb.Plugin(name="a", **fields),
        update_mask=FieldMask(paths=paths),
        allow_missing=allow_missing,
        allow_unreachable=True,
    )
    answer: pb.UpdatePluginResponse = await tenant.as_client("UpdatePlugin", request)
    return answer.plugin


async def get(tenant: Tenant) -> pb.Plugin:
    answer: pb.GetPluginResponse = await tenant.as_client("GetPlugin", pb.GetPluginRequest(name="a"))
    return answer.plugin


async def test_UpdatePlugin__changes_the_masked_fields_and_no_other(tenant: Tenant) -> None:
    first = await tenant.register("a", HERE, SPAWN, priority=3, grants=[CONTROL])
    changed = await change(tenant, "priority", "timeout", priority=5, hooks=[ENDED])
    assert (changed.priority, changed.timeout.ToSeconds()) == (5, 15)
    assert (list(changed.hooks), list(changed.grants)) == ([SPAWN], [CONTROL])
    assert (changed.endpoint, changed.failure_policy) == (first.endpoint, CLOSED)
    of_what_is_set = await change(tenant, hooks=[ENDED], timeout=Duration(seconds=2))
    assert (of_what_is_set.priority, of_what_is_set.timeout.ToSeconds()) == (5, 2)
    assert (list(of_what_is_set.hooks), of_what_is_set.failure_policy) == ([ENDED], CLOSED)
    assert (await change(tenant, "failure_policy")).failure_policy == OPEN
    replaced = await change(tenant, "*", endpoint=HERE, hooks=[SPAWN])
    assert (replaced.priority, list(replaced.grants)) == (0, [])
    assert await get(tenant) == replaced


async def test_UpdatePlugin__checks_the_plugin_as_it_becomes(tenant: Tenant) -> None:
    await tenant.register("a", HERE, SPAWN, max_wait=None)
    with refused(Reason.GRANT_MISSING):
        await change(tenant, "hooks", hooks=[FINALIZE])
    with refused(Reason.INVALID_REQUEST) as caught:
        await change(tenant, "max_wait", max_wait=Duration(seconds=1))
    assert [violation.field for violation in caught.value.violations] == ["plugin.max_wait"]
    for field in ("hooks", "endpoint"):
        with refused(Reason.INVALID_REQUEST) as caught:
            await change(tenant, field)
        assert [violation.field for violation in caught.value.violations] == [f"plugin.{field}"]
    assert list((await get(tenant)).hooks) == [SPAWN]


async def test_UpdatePlugin__asks_the_endpoint_only_if_it_is_changed(tenant: Tenant) -> None:
    await tenant.register("a", DEAD_ENDPOINT, SPAWN)

    async def reachable(*paths: str, **fields: Any) -> Any:
        request = pb.UpdatePluginRequest(
            plugin=pb.Plugin(name="a", **fields), update_mask=FieldMask(paths=paths)
        )
        return await tenant.as_client("UpdatePlugin", request)

    assert (await reachable("priority", priority=2)).plugin.priority == 2
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await reachable("endpoint", endpoint=DEAD_ENDPOINT)


async def test_GetPlugin__of_another_tenant_or_none(mesh: HookMesh, tenant: Tenant) -> None:
    own = await tenant.register("a", HERE, SPAWN)
    other = mesh.tenant(await mesh.replica())
    await other.register("b", HERE, SPAWN)
    assert await get(tenant) == own
    with refused(Reason.NOT_FOUND):
        await get(other)


async def test_UpdatePlugin__creates_a_plugin_only_if_asked(tenant: Tenant) -> None:
    with refused(Reason.NOT_FOUND):
        await change(tenant, endpoint=HERE, hooks=[SPAWN])
    with refused(Reason.NOT_FOUND):
        await change(tenant, allow_missing=True, endpoint=HERE, hooks=[SPAWN], etag="0" * 32)
    made = await change(tenant, "priority", allow_missing=True, endpoint=HERE, hooks=[SPAWN])
    assert (made.endpoint, list(made.hooks)) == (HERE, [SPAWN])


@pytest.mark.parametrize("path", ["name", "paused", "bundled", "etag", "nothing", "timeout.seconds", ""])
async def test_UpdatePlugin__mask_with_a_field_that_cannot_be_changed(tenant: Tenant, path: str) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await change(tenant, "priority", path)
    assert [violation.field for violation in caught.value.violations] == ["update_mask.paths[1]"]


async def test_an_old_etag_changes_and_deletes_nothing(tenant: Tenant) -> None:
    first = await tenant.register("a", HERE, SPAWN)
    second = await change(tenant, "priority", priority=1, etag=first.etag)
    assert second.etag != first.etag
    assert await change(tenant, "priority", priority=1, etag=first.etag) == second
    with refused(Reason.ETAG_DIFFERS) as caught:
        await change(tenant, "priority", priority=2, etag=first.etag)
    assert caught.value.facts == {"plugin": "a", "etag": second.etag}
    assert [violation.field for violation in caught.value.violations] == ["plugin.etag"]
    with refused(Reason.ETAG_DIFFERS):
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="a", etag=first.etag))
    assert await get(tenant) == second
    paused = await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="a"))
    with refused(Reason.ETAG_DIFFERS):
        await change(tenant, "priority", priority=2, etag=second.etag)
    back = await change(tenant, "priority", priority=0, etag=paused.plugin.etag)
    assert back.paused
    assert back.etag not in (first.etag, second.etag)
    for _ in range(2):  # Again when the plugin is gone.
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="a", etag=back.etag))
    assert await tenant.plugin_names() == []


async def test_UpdatePlugin__of_concurrent_changes_with_one_etag_one_is_made(tenant: Tenant) -> None:
    first = await tenant.register("a", HERE, SPAWN)
    changes = [change(tenant, "priority", priority=number, etag=first.etag) for number in range(1, 7)]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    [written] = [one for one in outcomes if isinstance(one, pb.Plugin)]
    refusals = [one.reason for one in outcomes if isinstance(one, MeshError)]
    assert refusals == [Reason.ETAG_DIFFERS] * 5
    assert await get(tenant) == written
