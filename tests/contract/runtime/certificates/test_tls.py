"""Connections with certificates on both sides."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.server import build_server, run_until_stopped

from tests.support.runtime.authority import Authority, Mounted
from tests.support.runtime.plugin import Plugin


async def test_peers_of_one_authority_talk_and_others_do_not(
    process_named: Any, peer_of: Any, request_with: Any, tmp_path: Path
) -> None:
    ours, others = Authority("ours"), Authority("others")
    member, stranger = Mounted(tmp_path / "member"), Mounted(tmp_path / "stranger")
    member.put(ours.leaf("member"), ours)
    stranger.put(others.leaf("stranger"), ours)
    process = process_named("transcript", **member.settings)
    server = build_server(process)
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
    target = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', server_credentials(process.tls))}"
    await server.start()
    outcomes = []
    try:
        for files in (member.settings, stranger.settings, {}):
            async with peer_of(target, **files) as peer:
                method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
                try:
                    with impersonate("acme"):
                        await peer.unary(method, request_with())
                    outcomes.append("allowed")
                except MeshError as error:
                    outcomes.append(error.reason)
    finally:
        await server.stop(None)
    assert outcomes == ["allowed", Reason.DEPENDENCY_UNAVAILABLE, Reason.DEPENDENCY_UNAVAILABLE]


@pytest.mark.parametrize(("host", "is_accepted"), [("", False), ("localhost", True)])
async def test_peer_at_an_address_has_the_certificate_of_the_given_host(
    process_named: Any, tmp_path: Path, host: str, is_accepted: bool
) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("member"), authority)
    process = process_named("transcript", **mounted.settings)
    server = build_server(process)
    port = server.add_secure_port("127.0.0.2:0", server_credentials(process.tls))
    await server.start()
    try:
        async with open_peer(process, "transcript", f"ipv4:127.0.0.2:{port}", certificate_host=host):
            (status,) = await process.dependencies.look()
    finally:
        await server.stop(None)
    assert status.is_up is is_accepted


async def test_server_with_tls_files_accepts_no_plaintext(
    process_named: Any, ask: Any, keys: Any, peer_of: Any, request_with: Any, tmp_path: Path
) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("member"), authority)
    server = build_server(process := process_named("transcript", listen="127.0.0.1:0", **mounted.settings))
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(run_until_stopped(process, server, on_ready=port.set_result))
    target = f"127.0.0.1:{await port}"
    try:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(target, keys.minter("hook").service_token("acme"))
        async with peer_of(target, **mounted.settings) as peer:
            with impersonate("acme"):
                await peer.unary(
                    pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn, request_with()
                )
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tls.crt", None, "cannot be read"),
        ("tls.crt", b"none", "tls_cert_file is not a certificate"),
        ("tls.key", b"none", "tls_key_file is not a private key"),
        ("ca.crt", b"none", "tls_ca_file is not a certificate"),
        ("tls.key", Authority("other").leaf("other").key, "tls_key_file is not the key of"),
    ],
)
async def test_files_that_cannot_be_used_end_the_process_without_their_path(
    process_named: Any, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    authority = Authority("ours")
    mounted = Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("member"), authority)
    if content is None:
        (mounted.folder / name).unlink()
    else:
        mounted.write(name, content)
    with pytest.raises(SystemExit, match=said) as caught:
        process_named("hook", **mounted.settings)
    assert str(tmp_path) not in str(caught.value)
