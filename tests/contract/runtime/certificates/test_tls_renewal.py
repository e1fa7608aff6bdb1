"""Certificates are renewed while a process runs."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
import structlog
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tls_files import LoggedTlsFiles

from tests.support.runtime.authority import Authority, Mounted
from tests.support.runtime.plugin import Plugin, allow, spawn_request
from tests.support.waiting import eventually

_PATIENCE_SECONDS = 60.0


@dataclass
class Guarded:
    """A TLS server that records the names on client certificates.

    Calls of `slow` end when `release` is set.
    """

    target: str
    mounted: Mounted
    names: list[str]
    began: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
def guarded(process_named: Any, tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(leaf: Any, *trusted: Authority) -> AsyncIterator[Guarded]:
        mounted, names = Mounted(tmp_path / "server"), []
        mounted.put(leaf, *trusted)
        process = process_named("transcript", **mounted.settings)

        async def behavior(request: Any, context: Any) -> Any:
            names.append(context.auth_context()["x509_common_name"][0].decode())
            if request.event.task == "slow":
                serving.began.set()
                await serving.release.wait()
            return await allow(request, context)

        server = build_server(process)
        pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(behavior), server)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(process.tls))
        serving = Guarded(f"127.0.0.1:{port}", mounted, names)
        await server.start()
        try:
            yield serving
        finally:
            await server.stop(None)

    return start


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


async def ask(peer: Peer, task: str = "", stub: Any = None) -> None:
    stub = stub or pb_grpc.HookHandlerServiceStub(peer.channel)
    with impersonate("acme"):
        await peer.unary(stub.HandleBeforeSpawn, spawn_request(task=task), timeout_seconds=_PATIENCE_SECONDS)


async def shown_by(guarded: Guarded, trusted: Authority, client: Mounted) -> str | None:
    """Return the name on the server certificate of a new connection; None if the
    authority is another one.
    """
    (client.folder / "one.crt").write_bytes(trusted.pem)
    context = ssl.create_default_context(cafile=client.folder / "one.crt")
    context.load_cert_chain(client.settings["tls_cert_file"], client.settings["tls_key_file"])
    context.set_alpn_protocols(["h2"])
    host, port = guarded.target.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    except ssl.SSLCertVerificationError:
        return None
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return str(subject[0][0][1])


async def test_renewed_files_count_for_new_connections_while_calls_run(
    guarded: Any, peer_of: Any, tmp_path: Path
) -> None:
    old, new = Authority("old"), Authority("new")
    client = Mounted(tmp_path / "client")
    client.put(old.leaf("client-1"), old)
    async with (
        guarded(old.leaf("server-1"), old) as server,
        peer_of(server.target, **client.settings) as peer,
    ):
        stop, count = asyncio.Event(), 0

        async def call_without_end() -> None:
            nonlocal count
            stub = pb_grpc.HookHandlerServiceStub(peer.channel)
            while not stop.is_set():
                await ask(peer, stub=stub)  # Any failure ends the test.
                count += 1

        async with asyncio.TaskGroup() as calls:
            slow = calls.create_task(ask(peer, "slow"))
            await server.began.wait()
            for _ in range(3):
                calls.create_task(call_without_end())
            await eventually(lambda: count > 20)
            assert await shown_by(server, old, client) == "server-1"

            for mounted in (server.mounted, client):  # First all trust both,
                mounted.write("ca.crt", old.pem + new.pem)
            for mounted, name in (
                (server.mounted, "server-2"),
                (client, "client-2"),
            ):  # then all show the new one,
                mounted.put(new.leaf(name), old, new)
            await eventually(lambda: server.names[-3:] == ["client-2"] * 3)
            for mounted in (server.mounted, client):  # and then the old one is forgotten.
                mounted.write("ca.crt", new.pem)
            before = count
            await eventually(lambda: count > before + 20)

            assert await shown_by(server, new, client) == "server-2"
            assert not slow.done()
            server.release.set()
            stop.set()
        late = Mounted(tmp_path / "late")
        late.put(old.leaf("client-3"), new)
        async with peer_of(server.target, **late.settings) as refused:
            with pytest.raises(MeshError) as caught:
                await ask(refused)
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert "client-3" not in server.names


async def test_channel_of_the_old_certificate_is_closed_with_its_last_call(
    guarded: Any, peer_of: Any, tmp_path: Path
) -> None:
    authority, client = Authority("ours"), Mounted(tmp_path / "client")
    client.put(authority.leaf("client-1"), authority)
    async with (
        guarded(authority.leaf("server"), authority) as server,
        peer_of(server.target, **client.settings) as peer,
        asyncio.TaskGroup() as calls,
    ):
        calls.create_task(ask(peer, "slow"))
        await server.began.wait()
        first = peer.channel.inner.generation().channel
        client.put(authority.leaf("client-2"), authority)
        await ask(peer)
        assert server.names[-1] == "client-2"
        assert first.get_state() is grpc.ChannelConnectivity.READY
        server.release.set()
        await eventually(lambda: first.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_peer_that_is_closed_leaves_no_channel_behind(
    guarded: Any, peer_of: Any, tmp_path: Path
) -> None:
    authority, client = Authority("ours"), Mounted(tmp_path / "client")
    client.put(authority.leaf("client-1"), authority)
    async with guarded(authority.leaf("server"), authority) as server, asyncio.TaskGroup() as calls:
        async with peer_of(server.target, **client.settings) as peer:
            slow = calls.create_task(cancelled(ask(peer, "slow")))
            await server.began.wait()
            channels = [peer.channel.inner.generation().channel]
            client.put(authority.leaf("client-2"), authority)
            channels.append(peer.channel.inner.generation().channel)
        assert [channel.get_state() for channel in channels] == [grpc.ChannelConnectivity.SHUTDOWN] * 2
        assert await slow


async def cancelled(call: Any) -> bool:
    try:
        await call
    except (asyncio.CancelledError, MeshError):
        return True
    return False


async def test_broken_files_are_logged_once_and_the_old_ones_stay(
    guarded: Any, peer_of: Any, tmp_path: Path, events: list[Any]
) -> None:
    authority, client = Authority("ours"), Mounted(tmp_path / "client")
    client.put(authority.leaf("client-1"), authority)
    fresh = authority.leaf("client-2")
    async with (
        guarded(authority.leaf("server-1"), authority) as server,
        peer_of(server.target, **client.settings) as peer,
    ):
        await ask(peer)
        # Cut off, then whole, but the key is still that of the old one.
        for content in (fresh.certificate[:200], fresh.certificate):
            for mounted in (server.mounted, client):
                mounted.write("tls.crt", content)
            for _ in range(3):
                await ask(peer)
        fine = Mounted(tmp_path / "fine")
        fine.put(authority.leaf("fine"), authority)
        assert await shown_by(server, authority, fine) == "server-1"
        assert set(server.names) == {"client-1"}
        reasons = [event["reason"] for event in events if event["event"] == "tls_files_unusable"]
        ours, theirs = (
            "tls_cert_file is not a certificate in PEM",
            "tls_key_file is not the key of the certificate in tls_cert_file",
        )
        assert reasons == [ours, theirs, theirs], (
            "the server looks when somebody connects, the client at each call"
        )
        assert str(tmp_path) not in str(events)

        client.write("tls.key", fresh.key)
        await ask(peer)
        assert server.names[-1] == "client-2"
        assert [event["event"] for event in events if event["event"] == "tls_files_renewed"] == [
            "tls_files_renewed"
        ]


def test_content_that_is_the_same_again_is_no_renewal(tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    leaf = authority.leaf("member")
    mounted.put(leaf, authority)
    files = LoggedTlsFiles(*mounted.settings.values())
    first = files.current()
    (mounted.folder / "tls.crt").unlink()
    assert files.current() is first
    mounted.put(leaf, authority)
    assert files.current() is first


def test_chain_that_is_cut_off_is_not_taken(tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("member"), authority)
    files = LoggedTlsFiles(*mounted.settings.values())
    first = files.current()
    fresh = authority.leaf("member")
    mounted.put(fresh, authority)
    mounted.write("tls.crt", fresh.certificate + authority.pem[:-100])
    assert files.current() is first
    mounted.write("tls.crt", fresh.certificate + authority.pem)
    assert files.current().chain == fresh.certificate + authority.pem


async def test_metrics_say_how_long_the_certificate_holds(tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("member", holds=timedelta(hours=2)), authority)
    settings = ProcessSettings(metrics_listen="127.0.0.1:0", **mounted.settings)
    async with start_process("hook", settings) as process:
        assert 7100 < await expires_in(process) <= 7200
        mounted.put(authority.leaf("member", holds=-timedelta(hours=1)), authority)
        assert -3700 < await expires_in(process) <= -3600


async def expires_in(process: Process) -> float:
    address = f"http://127.0.0.1:{process.metrics.port}/metrics"
    text = await asyncio.to_thread(lambda: urlopen(address).read().decode())
    return float(
        re.search(r"^spawnmesh_tls_certificate_expires_in_seconds(?:{.*})? (.*)$", text, re.MULTILINE)[1]
    )
