"""ExplainRoute: says which models a request would be given to, without a call."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.model_router.fixtures import World, image_block, refusal_of, user
from tests.support.model_router.provider import RATE_LIMITED, chat, sse


async def test_ExplainRoute__says_what_generate_would_do_and_calls_nobody(world: World) -> None:
    world.provider.on("one", RATE_LIMITED)
    world.provider.on("two", sse(*chat("two")))
    router = await world.router(world.config(blind_model_policy="ROUTE_AROUND"))
    await router.generate(world.ref("one"), world.ref("two"))
    asked = len(world.provider.bodies)
    explained = await router.explain(
        world.ref("two"), world.ref("one"), world.ref("blind"), messages=[user("look", image_block())]
    )
    assert explained == [("two", "READY"), ("one", "COOLING"), ("blind", "INCAPABLE")]
    assert len(world.provider.bodies) == asked


async def test_ExplainRoute__lists_what_a_strict_request_excludes(world: World) -> None:
    router = await world.router()
    assert await router.explain(world.ref("two"), strict=True) == [("two", "READY"), ("one", "NOT_NEEDED")]
    assert await refusal_of(router, "ExplainRoute", explain_of("nobody/nothing")) is Reason.UNKNOWN_MODEL


def explain_of(model: str) -> pb.ExplainRouteRequest:
    return pb.ExplainRouteRequest(request=pb.GenerateRequest(model=model, messages=[user("hello")]))


async def test_Generate__explicit_fallbacks_replace_all_others(world: World) -> None:
    config = world.config(fallbacks=[world.ref("blind")])
    router = await world.router(config)
    assert [model for model, _ in await router.explain(world.ref("two"))] == ["two", "blind", "one"]
    assert await router.explain(world.ref("two"), fallbacks=pb.Fallbacks()) == [("two", "READY")]
    assert await router.explain(fallbacks=pb.Fallbacks()) == [("one", "READY")]
    named = pb.Fallbacks(models=[world.ref("blind")])
    assert [model for model, _ in await router.explain(world.ref("two"), fallbacks=named)] == ["two", "blind"]
    both = pb.GenerateRequest(fallback_models=["fast"], fallbacks=named, messages=[user("hello")])
    assert (
        await refusal_of(router, "ExplainRoute", pb.ExplainRouteRequest(request=both))
        is Reason.INVALID_REQUEST
    )
