"""A channel that outlives its certificate.

The transport takes a channel's certificate once, when the channel is made. So here the channel is made anew when the files were: calls that run
stay on the old one, which is closed with the last of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from spawnmesh_runtime.credentials import peer_credentials
from spawnmesh_runtime.tls_files import TlsFiles, TlsMaterial


@dataclass(slots=True, eq=False)
class _Generation:
    """A channel with one certificate, and how many calls are on it."""

    material: TlsMaterial
    channel: grpc.aio.Channel
    running: int = 0
    retired: bool = False
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    def begun(self, call: Any) -> Any:
        self.running += 1
        call.add_done_callback(self._ended)
        return call

    def retire(self) -> None:
        self.retired = True
        self._tell()

    def _ended(self, call: Any) -> None:
        self.running -= 1
        self._tell()

    def _tell(self) -> None:
        if self.retired and self.running == 0:
            self.unused.set()


class RenewedChannel(grpc.aio.Channel):
    """To `target` with the newest certificate: each call that begins looks whether the files changed. Stubs made on it stay good."""

    def __init__(self, target: str, files: TlsFiles, options: Sequence[tuple[str, str | int]]) -> None:
        self._target = target
        self._files = files
        self._options = list(options)
        self._newest = self._made(files.current())
        self._retiring: dict[asyncio.Task[None], _Generation] = {}

    def generation(self) -> _Generation:
        """The one for calls that begin now."""
        material = self._files.current()
        if material is not self._newest.material:
            old, self._newest = self._newest, self._made(material)
            old.retire()
            task = asyncio.create_task(_closed_when_unused(old))
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)
        return self._newest

    def _made(self, material: TlsMaterial) -> _Generation:
        credentials = peer_credentials(material)
        return _Generation(material, grpc.aio.secure_channel(self._target, credentials, options=self._options))

    def unary_unary(self, method: str, *serializers: Any, **more: Any) -> Any:
        return _Method(self, "unary_unary", method, serializers, more)

    def unary_stream(self, method: str, *serializers: Any, **more: Any) -> Any:
        return _Method(self, "unary_stream", method, serializers, more)

    def stream_unary(self, method: str, *serializers: Any, **more: Any) -> Any:
        return _Method(self, "stream_unary", method, serializers, more)

    def stream_stream(self, method: str, *serializers: Any, **more: Any) -> Any:
        return _Method(self, "stream_stream", method, serializers, more)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.generation().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.generation().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.generation().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Closes the newest one as any channel; calls that are still on older ones are cancelled."""
        retiring = dict(self._retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        for generation in retiring.values():
            await generation.channel.close(None)
        await self._newest.channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None)


class _Method:
    """A method of a stub, which begins each call on the newest channel."""

    def __init__(self, channel: RenewedChannel, shape: str, path: str, serializers: Any, more: Any) -> None:
        self._channel = channel
        self._make = (shape, serializers, more)
        self._method = path  # By the name by which grpc's own keep it.
        self._of: _Generation | None = None
        self._call: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        generation = self._channel.generation()
        if generation is not self._of:
            shape, serializers, more = self._make
            self._of, self._call = generation, getattr(generation.channel, shape)(self._method, *serializers, **more)
        return generation.begun(self._call(*arguments, **options))


async def _closed_when_unused(generation: _Generation) -> None:
    await generation.unused.wait()
    await generation.channel.close(None)
