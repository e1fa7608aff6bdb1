"""Choose what a provider is asked for about thinking."""

from spawnmesh_model_router.clients.providers.anthropic_request import accepts_thinking_budget
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.router_config import Model, ProviderKind
from spawnmesh_model_router.domain.thinking import ThinkingSetting, choose


def thinking_setting(request: ProviderRequest, kind: ProviderKind, model: Model) -> ThinkingSetting | None:
    """Return the setting that the model gets; None if it gets none."""
    if request.thinking is None or not model.thinking:
        return None
    max_output = min(request.max_output or model.max_output, model.max_output)
    setting = choose(request.thinking, model.thinking, max_output)
    if setting is None or kind != "anthropic" or not isinstance(setting.value, int) or not setting.value:
        return setting
    return setting if accepts_thinking_budget(request.messages) else None
