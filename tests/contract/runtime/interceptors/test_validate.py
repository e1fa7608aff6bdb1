"""Requests that break a rule of their contract are refused."""

from typing import Any

import pytest
from spawnmesh.hook.v1 import event_pb2 as event_pb
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.interceptors.validate import require_valid

UNSPECIFIED = event_pb.HOOK_KIND_UNSPECIFIED


async def test_invalid_request_names_the_field_and_reaches_no_servicer(serve: Any, peer_of: Any) -> None:
    served = await serve()
    async with peer_of(served.target) as peer:
        with impersonate("acme"), pytest.raises(MeshError) as caught:
            await peer.unary(
                pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn,
                pb.HandleBeforeSpawnRequest(),
                timeout_seconds=60,
            )
    assert (caught.value.reason, caught.value.status) == (Reason.INVALID_REQUEST, Status.INVALID_ARGUMENT)
    assert [violation.field for violation in caught.value.violations] == ["event"]
    assert served.plugin.seen == []


def test_paths_go_into_lists_and_values_are_not_repeated() -> None:
    plugin = hook_pb.Plugin(
        name="SECRET name", endpoint="grpc://x", hooks=[event_pb.HOOK_KIND_BEFORE_SPAWN, UNSPECIFIED]
    )
    with pytest.raises(MeshError) as caught:
        require_valid(hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert [violation.field for violation in caught.value.violations] == ["plugin.name", "plugin.hooks[1]"]
    assert "SECRET" not in str(caught.value) + repr(caught.value.violations)
    assert "(and 1 more)" in caught.value.message


def test_many_violations_are_cut_to_what_a_header_holds() -> None:
    plugin = hook_pb.Plugin(name="a", endpoint="grpc://x", hooks=[UNSPECIFIED] * 100)
    with pytest.raises(MeshError) as caught:
        require_valid(hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert len(caught.value.violations) == 20


@pytest.mark.parametrize(("seconds", "nanos"), [(2**63 - 1, 0), (-(2**63), 0), (1, -1_000_000_001)])
def test_a_duration_that_is_none_is_refused_with_its_path(seconds: int, nanos: int) -> None:
    request = tenant_pb.CreateTenantRequest(tenant_id="acme")
    request.settings.attachments.retention.seconds = seconds
    request.settings.attachments.retention.nanos = nanos
    with pytest.raises(MeshError) as caught:
        require_valid(request)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [one.field for one in caught.value.violations] == ["settings.attachments.retention"]


def test_valid_message_passes() -> None:
    require_valid(hook_pb.ListPluginsRequest())
