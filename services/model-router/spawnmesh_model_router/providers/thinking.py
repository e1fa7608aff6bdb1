"""What a provider is told about thinking, for the answer and for whoever asks what it was."""

from spawnmesh_model_router.config import Model, ProviderKind
from spawnmesh_model_router.domain.thinking import Told, choose
from spawnmesh_model_router.providers.anthropic_request import can_begin_to_think
from spawnmesh_model_router.providers.question import Question


def told(question: Question, kind: ProviderKind, model: Model) -> Told | None:
    """What the model is told; None for nothing."""
    if question.thinking is None or not model.thinking:
        return None
    max_output = min(question.max_output or model.max_output, model.max_output)
    chosen = choose(question.thinking, model.thinking, max_output)
    if chosen is None or kind != "anthropic" or not isinstance(chosen.value, int) or not chosen.value:
        return chosen
    return chosen if can_begin_to_think(question.messages) else None
