"""The models that can be asked for."""

from spawnmesh.model_router.v1 import routing_pb2

from spawnmesh_model_router.config import OPENAI_LIKE, RouterConfig
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.render import render_thinking


def list_models(config: RouterConfig) -> list[routing_pb2.ModelInfo]:
    """Every listed model, by name."""
    primary = config.model_called(config.primary)
    return [_info(config, name, is_primary=str(primary) == name) for name in sorted(config.models)]


def _info(config: RouterConfig, name: str, *, is_primary: bool) -> routing_pb2.ModelInfo:
    model = config.models[name]
    kind = config.providers[name.partition("/")[0]].kind
    aliases = sorted(alias for alias in config.aliases if _means(config, alias, name))
    return routing_pb2.ModelInfo(
        model=name,
        provider_kind=kind,
        context_window_token_count=model.context_window,
        max_output_token_count=model.max_output,
        vision=model.vision,
        tools=model.tools,
        aliases=aliases,
        is_primary=is_primary,
        thinking_levels=(render_thinking(level) for level in ThinkingLevel if level in model.thinking),
        api=(model.api or "chat") if kind in OPENAI_LIKE else "",
    )


def _means(config: RouterConfig, alias: str, name: str) -> bool:
    ref: ModelRef | None = config.model_called(alias)
    return ref is not None and str(ref) == name
