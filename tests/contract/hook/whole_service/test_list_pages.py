"""Every list of the hook service comes in pages."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import pytest
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_runtime.peers import Peer

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.list_pages import PagedList, check_page_sizes, check_page_tokens, check_pages

HOOKS = (events.HOOK_KIND_LLM_INPUT, events.HOOK_KIND_LLM_OUTPUT, events.HOOK_KIND_SESSION_END)
NOWHERE = "grpc://127.0.0.1:9"


async def _with_plugins(tenant: Tenant) -> Tenant:
    """Register plugins with equal and with other priorities, and a paused one."""
    for name, priority, hook in (
        ("d", 0, HOOKS[0]),
        ("a", 0, HOOKS[1]),
        ("z", 5, HOOKS[2]),
        ("b", 0, HOOKS[0]),
    ):
        await tenant.register(name, NOWHERE, hook, priority=priority)
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="b"))
    return tenant


async def _plugins(tenant: Tenant, other: Tenant) -> PagedList:
    numbers = count()
    return PagedList(
        partial(tenant.as_client, "ListPlugins"),
        pb.ListPluginsRequest(),
        "plugins",
        [
            (partial(other.as_client, "ListPlugins"), pb.ListPluginsRequest()),
            (partial(tenant.as_run, "ListActiveHooks"), run_pb.ListActiveHooksRequest()),
        ],
        add=lambda: tenant.register(f"n{next(numbers)}", NOWHERE, HOOKS[0], priority=-1),
    )


async def _active_hooks(tenant: Tenant, other: Tenant) -> PagedList:
    return PagedList(
        partial(tenant.as_run, "ListActiveHooks"),
        run_pb.ListActiveHooksRequest(),
        "hooks",
        [
            (partial(other.as_run, "ListActiveHooks"), run_pb.ListActiveHooksRequest()),
            (partial(tenant.as_run, "ListActiveHooks", session_id="ses_2"), run_pb.ListActiveHooksRequest()),
            (partial(tenant.as_client, "ListPlugins"), pb.ListPluginsRequest()),
        ],
    )


async def _deliveries(tenant: Tenant, other: Tenant) -> PagedList:
    for one in (tenant, other):
        for name in ("d", "a", "z"):
            await one.as_client("TestPlugin", pb.TestPluginRequest(name=name))
    return PagedList(
        partial(tenant.as_client, "ListDeliveries"),
        pb.ListDeliveriesRequest(),
        "deliveries",
        [
            (partial(other.as_client, "ListDeliveries"), pb.ListDeliveriesRequest()),
            (partial(tenant.as_client, "ListDeliveries"), pb.ListDeliveriesRequest(session_id="ses_test")),
            (partial(tenant.as_client, "ListPlugins"), pb.ListPluginsRequest()),
        ],
    )


LISTS = {"ListPlugins": _plugins, "ListActiveHooks": _active_hooks, "ListDeliveries": _deliveries}


@pytest.fixture(params=LISTS)
async def listed(mesh: HookMesh, replica: Peer, tenant: Tenant, request: pytest.FixtureRequest) -> PagedList:
    other = mesh.tenant(replica)
    return await LISTS[request.param](await _with_plugins(tenant), await _with_plugins(other))


@pytest.mark.parametrize("check", [check_pages, check_page_sizes, check_page_tokens])
async def test_list_comes_in_pages(listed: PagedList, check: Callable[[PagedList], Awaitable[None]]) -> None:
    await check(listed)


async def test_ListPlugins__a_plugin_that_is_removed_between_pages_hides_no_other(tenant: Tenant) -> None:
    await _with_plugins(tenant)
    first: pb.ListPluginsResponse = await tenant.as_client("ListPlugins", pb.ListPluginsRequest(page_size=2))
    assert [plugin.name for plugin in first.plugins] == ["z", "d"]
    for name in ("z", "d"):
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name=name))
    rest: pb.ListPluginsResponse = await tenant.as_client(
        "ListPlugins", pb.ListPluginsRequest(page_size=2, page_token=first.next_page_token)
    )
    assert [plugin.name for plugin in rest.plugins] == ["a", "b"]
