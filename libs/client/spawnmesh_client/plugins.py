"""The plugins of a tenant."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as rpc
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD

from spawnmesh_client.pages import paged
from spawnmesh_client.resource_views import Plugin, PluginDelivery
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import number_of, view_of
from spawnmesh_client.wire import WireMesh

_REGISTER_SECONDS = 60.0
_TEST_SECONDS = 600.0


class Plugins:
    """`mesh.plugins`."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def register(self, plugin: Plugin, *, allow_unreachable: bool = False) -> tuple[Plugin, str]:
        """Register a plugin, or replace all of the one with its name.

        Return it with the defaults filled in, and the secret that signs the calls of a webhook.
        Raises Conflict ETAG_DIFFERS if the plugin has an etag and was changed since.
        """
        return await self._update(
            plugin, [EVERY_FIELD], allow_missing=True, allow_unreachable=allow_unreachable
        )

    async def update(
        self, plugin: Plugin, fields: Sequence[str] = (), *, allow_unreachable: bool = False
    ) -> tuple[Plugin, str]:
        """Change these fields of a plugin, such as `priority`, to the values in `plugin`.

        Without fields, change those that are set and not 0. Return what `register` returns. Raises
        NotFound, InvalidRequest for a field that cannot be changed, and Conflict ETAG_DIFFERS.
        """
        return await self._update(plugin, fields, allow_missing=False, allow_unreachable=allow_unreachable)

    async def _update(
        self, plugin: Plugin, fields: Sequence[str], *, allow_missing: bool, allow_unreachable: bool
    ) -> tuple[Plugin, str]:
        request = rpc.UpdatePluginRequest(
            plugin=_message(plugin),
            update_mask=FieldMask(paths=fields),
            allow_missing=allow_missing,
            allow_unreachable=allow_unreachable,
        )
        answer = await self._peer.unary(
            HookServiceStub(self._peer.channel).UpdatePlugin, request, timeout_seconds=_REGISTER_SECONDS
        )
        return view_of(Plugin, answer.plugin), answer.webhook_secret

    async def get(self, name: str) -> Plugin:
        """Return one plugin. Raises NotFound."""
        stub = HookServiceStub(self._peer.channel)
        answer = await self._peer.unary(stub.GetPlugin, rpc.GetPluginRequest(name=name))
        return view_of(Plugin, answer.plugin)

    async def list(self) -> Sequence[Plugin]:
        """Return all plugins of the tenant."""
        found = paged(
            self._peer,
            HookServiceStub(self._peer.channel).ListPlugins,
            rpc.ListPluginsRequest(),
            "plugins",
        )
        return [view_of(Plugin, plugin) async for plugin in found]

    async def pause(self, name: str) -> Plugin:
        """Stop calling the plugin until it is resumed."""
        stub = HookServiceStub(self._peer.channel)
        return view_of(
            Plugin, (await self._peer.unary(stub.PausePlugin, rpc.PausePluginRequest(name=name))).plugin
        )

    async def resume(self, name: str) -> Plugin:
        """Call a paused plugin again."""
        stub = HookServiceStub(self._peer.channel)
        return view_of(
            Plugin, (await self._peer.unary(stub.ResumePlugin, rpc.ResumePluginRequest(name=name))).plugin
        )

    async def test(self, name: str) -> Sequence[PluginDelivery]:
        """Call the plugin with an event of each of its hooks and return its decisions."""
        stub = HookServiceStub(self._peer.channel)
        answer = await self._peer.unary(
            stub.TestPlugin, rpc.TestPluginRequest(name=name), timeout_seconds=_TEST_SECONDS
        )
        return [view_of(PluginDelivery, one) for one in answer.deliveries]

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Delete the plugin, if it exists.

        With an etag, delete this version alone. Raises Conflict ETAG_DIFFERS.
        """
        stub = HookServiceStub(self._peer.channel)
        await self._peer.unary(stub.DeletePlugin, rpc.DeletePluginRequest(name=name, etag=etag))

    async def deliveries(
        self, *, session_id: str = "", run_id: str = "", plugin: str = ""
    ) -> AsyncIterator[PluginDelivery]:
        """Yield the calls of plugins, newest first."""
        stub = HookServiceStub(self._peer.channel)
        request = rpc.ListDeliveriesRequest(session_id=session_id, run_id=run_id, plugin=plugin)
        async for one in paged(self._peer, stub.ListDeliveries, request, "deliveries"):
            yield view_of(PluginDelivery, one)

    @property
    def _peer(self) -> TokenPeer:
        return self._wire.service("hook")


def _message(plugin: Plugin) -> rpc.Plugin:
    kinds = event_pb2.HookKind.DESCRIPTOR
    message = rpc.Plugin(
        name=plugin.name,
        endpoint=plugin.endpoint,
        hooks=[event_pb2.HookKind.ValueType(number_of(kind, kinds)) for kind in plugin.hooks],
        priority=plugin.priority,
        failure_policy=rpc.FailurePolicy.ValueType(
            number_of(plugin.failure_policy or "", rpc.FailurePolicy.DESCRIPTOR)
        ),
        grants=[rpc.Grant.ValueType(number_of(grant, rpc.Grant.DESCRIPTOR)) for grant in plugin.grants],
        max_concurrent_calls=plugin.max_concurrent_calls,
        paused=plugin.paused,
        etag=plugin.etag,
    )
    _set(message.timeout, plugin.timeout)
    _set(message.max_wait, plugin.max_wait)
    return message


def _set(target: Duration, time: timedelta | None) -> None:
    if time is not None:
        target.FromTimedelta(time)
