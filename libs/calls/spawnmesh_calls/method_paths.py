"""A channel whose stub methods know the path of their RPC."""

from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio


class Method:
    """A method of a stub. `path` is `/<service>/<method>`."""

    __slots__ = ("_call", "path")

    def __init__(self, path: str, call: Any) -> None:
        self.path = path
        self._call = call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)


class MethodPathChannel(grpc.aio.Channel):
    """A channel that delegates to `channel` and returns its methods as `Method`.

    A multi-callable of grpc keeps the path of its RPC in a private attribute.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.inner = channel

    def unary_unary(self, method: str, *serializers: Any, **more: Any) -> Any:
        return Method(method, self.inner.unary_unary(method, *serializers, **more))

    def unary_stream(self, method: str, *serializers: Any, **more: Any) -> Any:
        return Method(method, self.inner.unary_stream(method, *serializers, **more))

    def stream_unary(self, method: str, *serializers: Any, **more: Any) -> Any:
        return Method(method, self.inner.stream_unary(method, *serializers, **more))

    def stream_stream(self, method: str, *serializers: Any, **more: Any) -> Any:
        return Method(method, self.inner.stream_stream(method, *serializers, **more))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.inner.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self.inner.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None)
