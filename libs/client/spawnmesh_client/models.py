"""The models that a mesh can call."""

from collections.abc import Sequence

from spawnmesh.model_router.v1 import model_router_service_pb2 as rpc
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub

from spawnmesh_client.pages import paged
from spawnmesh_client.resource_views import Model, ProviderHealth
from spawnmesh_client.view_of import view_of
from spawnmesh_client.wire import WireMesh


class Models:
    """`mesh.models`."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def list(self) -> Sequence[Model]:
        """Return the models that can be requested, with their capabilities."""
        peer = self._wire.service("model-router")
        stub = ModelRouterServiceStub(peer.channel)
        found = paged(peer, stub.ListModels, rpc.ListModelsRequest(), "models")
        return [view_of(Model, model) async for model in found]

    async def health(self) -> Sequence[ProviderHealth]:
        """Return the providers with their credentials and cooldowns."""
        peer = self._wire.service("model-router")
        stub = ModelRouterServiceStub(peer.channel)
        found = paged(peer, stub.ListProviderHealth, rpc.ListProviderHealthRequest(), "providers")
        return [view_of(ProviderHealth, provider) async for provider in found]
