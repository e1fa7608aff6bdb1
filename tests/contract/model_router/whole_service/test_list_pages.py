"""Every list of the model router comes in pages."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_model_router.rpc import list_provider_health

from tests.support.list_pages import PagedList, check_page_sizes, check_page_tokens, check_pages
from tests.support.model_router.failures import BY_REASON, put_failures
from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.provider import RATE_LIMITED
from tests.support.model_router.spending import BY_AGENT, put_spend


def _models(router: Router, other: Router) -> PagedList:
    return PagedList(
        partial(router.call, "ListModels"),
        pb.ListModelsRequest(),
        "models",
        [
            (partial(other.call, "ListModels"), pb.ListModelsRequest()),
            (partial(router.call, "ListProviderHealth"), pb.ListProviderHealthRequest()),
        ],
    )


def _provider_health(router: Router, other: Router) -> PagedList:
    operator = partial(router.call, "ListProviderHealth", token=router.operator)
    return PagedList(
        partial(router.call, "ListProviderHealth"),
        pb.ListProviderHealthRequest(),
        "providers",
        [
            (partial(other.call, "ListProviderHealth"), pb.ListProviderHealthRequest()),
            (operator, pb.ListProviderHealthRequest()),
            (partial(router.call, "ListModels"), pb.ListModelsRequest()),
        ],
    )


def _spend(router: Router, other: Router) -> PagedList:
    by_agent = pb.ListSpendRequest(group_by=[BY_AGENT])
    return PagedList(
        partial(router.call, "ListSpend"),
        pb.ListSpendRequest(),
        "rows",
        [
            (partial(other.call, "ListSpend"), pb.ListSpendRequest()),
            (partial(router.call, "ListSpend"), by_agent),
            (partial(router.call, "ListModels"), pb.ListModelsRequest()),
        ],
    )


def _spend_by_agent(router: Router, other: Router) -> PagedList:
    by_agent = pb.ListSpendRequest(group_by=[BY_AGENT])
    return PagedList(partial(router.call, "ListSpend"), by_agent, "rows", _spend(router, other).elsewhere[:1])


def _failures(router: Router, other: Router) -> PagedList:
    by_reason = pb.ListFailuresRequest(group_by=[BY_REASON])
    return PagedList(
        partial(router.call, "ListFailures"),
        pb.ListFailuresRequest(),
        "rows",
        [
            (partial(other.call, "ListFailures"), pb.ListFailuresRequest()),
            (partial(router.call, "ListFailures"), by_reason),
            (partial(router.call, "ListSpend"), pb.ListSpendRequest()),
        ],
    )


def _failures_by_reason(router: Router, other: Router) -> PagedList:
    by_reason = pb.ListFailuresRequest(group_by=[BY_REASON])
    elsewhere = _failures(router, other).elsewhere[:1]
    return PagedList(partial(router.call, "ListFailures"), by_reason, "rows", elsewhere)


LISTS = {
    "ListModels": _models,
    "ListProviderHealth": _provider_health,
    "ListSpend": _spend,
    "ListSpend-by-agent": _spend_by_agent,
    "ListFailures": _failures,
    "ListFailures-by-reason": _failures_by_reason,
}


@pytest.fixture(params=LISTS)
async def listed(world: World, request: pytest.FixtureRequest) -> PagedList:
    router = await world.router()
    other = await router.for_tenant(f"{router.tenant}-x")
    for days_ago in (0, 2):
        for tenant in (router.tenant, other.tenant):
            names = [(agent, model) for agent in ("", "*", "ann", "ben") for model in ("p/one", "p/two")]
            await put_spend(world, tenant, days_ago, *names)
            failed = [(model, reason) for model in ("p/one", "p/two") for reason in ("BILLING", "TIMEOUT")]
            await put_failures(world, tenant, days_ago, *failed)
    return LISTS[request.param](router, other)


@pytest.mark.parametrize("check", [check_pages, check_page_sizes, check_page_tokens])
async def test_list_comes_in_pages(listed: PagedList, check: Callable[[PagedList], Awaitable[None]]) -> None:
    await check(listed)


async def test_ListProviderHealth__a_page_ends_with_the_provider_that_fills_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_provider_health, "_COOLDOWNS_OF_PAGE", 1)
    world.provider.on("one", RATE_LIMITED)
    config = world.config()
    config["providers"]["z"] = config["providers"][world.scripted]
    router = await world.router(config)
    await router.generate(world.ref("one"), strict=True)
    first = await router.call("ListProviderHealth", pb.ListProviderHealthRequest())
    assert [one.provider for one in first.providers] == [world.anthropic, world.scripted]
    assert first.providers[-1].cooldowns
    request = pb.ListProviderHealthRequest(page_token=first.next_page_token)
    rest = await router.call("ListProviderHealth", request)
    assert ([one.provider for one in rest.providers], rest.next_page_token) == (["z"], "")
