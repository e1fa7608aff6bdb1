"""ListModels: the configured models and what they can do."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2

from tests.support.model_router.fixtures import World


async def test_ListModels__lists_the_capabilities(world: World) -> None:
    models = {
        info.model: info
        for info in (await (await world.router()).call("ListModels", pb.ListModelsRequest())).models
    }
    assert list(models) == sorted(models)
    one, two, blind = (models[world.ref(name)] for name in ("one", "two", "blind"))
    assert (one.is_primary, two.is_primary) == (True, False)
    kinds = {name.partition("/")[0]: info.provider_kind for name, info in models.items()}
    assert kinds == {
        world.scripted: routing_pb2.PROVIDER_KIND_OPENAI_COMPATIBLE,
        world.anthropic: routing_pb2.PROVIDER_KIND_ANTHROPIC,
    }
    assert (list(two.aliases), two.vision, blind.vision, blind.tools) == (["fast"], True, False, False)
    assert (one.context_window_token_count, one.max_output_token_count) == (128000, 4096)
