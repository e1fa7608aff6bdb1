"""The models that a mesh can call."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from spawnmesh.model_router.v1 import model_router_service_pb2 as rpc
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub

from spawnmesh_client.failures import FailureRow, failures_request, list_failures
from spawnmesh_client.pages import paged
from spawnmesh_client.resource_views import Model, ProviderHealth
from spawnmesh_client.spending import Spending, list_spend, spend_request, spending_of
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

    async def spend(
        self,
        *,
        start_time: datetime | timedelta | None = None,
        end_time: datetime | timedelta | None = None,
        group_by: Sequence[str] = (),
    ) -> Spending:
        """Return what the tenant's calls used and cost on the days that begin in the span, and the
        budget of the current day.

        A time is one, or that time ago. Without times it is the last 30 days. `group_by` names
        dimensions, such as `AGENT`; the rows are sums over the others. Raises ValueError for an
        unknown dimension, and InvalidRequest for a span of more than 90 days.
        """
        request = spend_request(start_time, end_time, group_by)
        return spending_of(await list_spend(self._wire.service("model-router"), request))

    async def failures(
        self,
        *,
        start_time: datetime | timedelta | None = None,
        end_time: datetime | timedelta | None = None,
        group_by: Sequence[str] = (),
    ) -> Sequence[FailureRow]:
        """Return how many of the tenant's calls failed in the hours that begin in the span.

        A time is one, or that time ago. Without times it is the last 24 hours. `group_by` names
        dimensions, such as `REASON`; the rows are sums over the others. Raises ValueError for an
        unknown dimension, and InvalidRequest for a span of more than 168 hours.
        """
        request = failures_request(start_time, end_time, group_by)
        rows = await list_failures(self._wire.service("model-router"), request)
        return [view_of(FailureRow, row) for row in rows]
