"""A channel that can connect anew, and does so when its TLS files are renewed.

grpc reads the certificate of a channel once, when it creates the channel, and keeps a connection
whose peer is silent. This channel then creates a new inner channel. Running calls stay on the old
one, which closes after the last of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from spawnmesh_calls.tls_files import ServerTls, TlsFiles, TlsMaterial


@dataclass(slots=True, eq=False)
class _Generation:
    """A channel with one certificate, and the number of its running calls."""

    material: TlsMaterial | None
    channel: grpc.aio.Channel
    running: int = 0
    retired: bool = False
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    def track(self, call: Any) -> Any:
        self.running += 1
        call.add_done_callback(self._ended)
        return call

    def retire(self) -> None:
        self.retired = True
        self._check_unused()

    def _ended(self, call: Any) -> None:
        self.running -= 1
        self._check_unused()

    def _check_unused(self) -> None:
        if self.retired and self.running == 0:
            self.unused.set()


def peer_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """Return channel credentials.

    Without an authority, the channel trusts the authorities of the system.
    """
    return grpc.ssl_channel_credentials(
        root_certificates=material.authority,
        private_key=material.key or None,
        certificate_chain=material.chain or None,
    )


class RenewableChannel(grpc.aio.Channel):
    """A channel to `target`, with the newest certificate if it has TLS files.

    Each new call checks whether the files changed. Stubs on this channel stay valid.
    """

    def __init__(
        self, target: str, files: TlsFiles | ServerTls | None, options: Sequence[tuple[str, str | int]]
    ) -> None:
        self._target = target
        self._files = files
        self._options = list(options)
        self._newest = self._create(self._current_material())
        self._retiring: dict[asyncio.Task[None], _Generation] = {}

    def generation(self) -> _Generation:
        """Return the inner channel for a new call."""
        if self._current_material() is not self._newest.material:
            self.renew()
        return self._newest

    def renew(self) -> None:
        """Make new calls on new connections. Running calls stay where they are."""
        old, self._newest = self._newest, self._create(self._current_material())
        old.retire()
        task = asyncio.create_task(_close_when_unused(old))
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)

    def _current_material(self) -> TlsMaterial | None:
        return None if self._files is None else self._files.current()

    def _create(self, material: TlsMaterial | None) -> _Generation:
        if material is None:
            return _Generation(None, grpc.aio.insecure_channel(self._target, options=self._options))
        credentials = peer_credentials(material)
        return _Generation(
            material, grpc.aio.secure_channel(self._target, credentials, options=self._options)
        )

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
        """Close the newest inner channel with the grace; cancel calls that are still on
        older ones.
        """
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
    """A method of a stub that starts each call on the newest inner channel."""

    def __init__(self, channel: RenewableChannel, shape: str, path: str, serializers: Any, more: Any) -> None:
        self._channel = channel
        self._make = (shape, serializers, more)
        self._path = path
        self._generation: _Generation | None = None
        self._call: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        generation = self._channel.generation()
        if generation is not self._generation:
            shape, serializers, more = self._make
            self._generation, self._call = (
                generation,
                getattr(generation.channel, shape)(self._path, *serializers, **more),
            )
        return generation.track(self._call(*arguments, **options))


async def _close_when_unused(generation: _Generation) -> None:
    await generation.unused.wait()
    await generation.channel.close(None)
