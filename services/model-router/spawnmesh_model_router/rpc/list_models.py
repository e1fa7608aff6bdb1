"""ListModels: list the configured models, page by page."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_core.page_tokens import page_token, position_of
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import render_api, render_provider_kind, render_thinking

_DEFAULT_PAGE_SIZE = 100


async def list_models(
    request: pb.ListModelsRequest, caller: Caller, deps: Dependencies
) -> pb.ListModelsResponse:
    """Return a page of the configured models, by name.

    Raises INVALID_REQUEST for a page token of another list.
    """
    last = position_of(request, (str,), caller.tenant_id, caller.session_id)
    size = request.page_size or _DEFAULT_PAGE_SIZE
    config = deps.chain.config
    found = sorted(name for name in config.models if last is None or name > last[0])
    response = pb.ListModelsResponse(
        models=[_render_model(config, name) for name in found[:size]],
        currency=config.currency,
        price_version=config.price_version,
    )
    if len(found) > size:
        end = found[size - 1]
        response.next_page_token = page_token([end], request, caller.tenant_id, caller.session_id)
    return response


def _render_model(config: RouterConfig, name: str) -> routing_pb2.ModelInfo:
    model = config.models[name]
    kind = config.providers[name.partition("/")[0]].kind
    aliases = sorted(alias for alias in config.aliases if str(config.resolve_model(alias)) == name)
    return routing_pb2.ModelInfo(
        model=name,
        provider_kind=render_provider_kind(kind),
        context_window_token_count=model.context_window,
        max_output_token_count=model.max_output,
        vision=model.vision,
        tools=model.tools,
        aliases=aliases,
        is_primary=str(config.resolve_model(config.primary)) == name,
        thinking_levels=(render_thinking(level) for level in ThinkingLevel if level in model.thinking),
        api=render_api(model, kind),
        prices=routing_pb2.ModelPrices(
            input_micros=model.prices.input,
            output_micros=model.prices.output,
            cache_read_micros=model.prices.cache_read,
            cache_write_micros=model.prices.cache_write,
        ),
    )
