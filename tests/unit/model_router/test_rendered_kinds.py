"""Every kind of provider and every API of the configuration has a value in the contract."""

from typing import get_args

import pytest
from spawnmesh.model_router.v1 import routing_pb2
from spawnmesh_model_router.domain.router_config import Model, ProviderKind
from spawnmesh_model_router.rpc.messages import render_api, render_provider_kind


def test_kinds_of_providers_are_those_of_the_contract() -> None:
    rendered = {render_provider_kind(kind) for kind in get_args(ProviderKind)}
    assert rendered == {value for value in routing_pb2.ProviderKind.values() if value}


@pytest.mark.parametrize(
    ("kind", "api", "rendered"),
    [
        ("openai", None, routing_pb2.MODEL_API_CHAT),
        ("openai", "responses", routing_pb2.MODEL_API_RESPONSES),
        ("openai_compatible", "chat", routing_pb2.MODEL_API_CHAT),
        ("anthropic", None, routing_pb2.MODEL_API_UNSPECIFIED),
        ("gemini", None, routing_pb2.MODEL_API_UNSPECIFIED),
    ],
)
def test_api_is_one_of_openais(kind: ProviderKind, api: str | None, rendered: int) -> None:
    model = Model.model_validate({"context_window": 1000, "max_output": 100, "api": api})
    assert render_api(model, kind) == rendered
