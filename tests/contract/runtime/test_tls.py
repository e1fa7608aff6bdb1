"""Connections with certificates on both ends."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.credentials import server_credentials
from spawnmesh_runtime.server import build_server

from .conftest import Plugin


def certificate(folder: Path, name: str) -> dict[str, Path]:
    """A self-signed certificate for loopback, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = {"tls_cert_file": folder / f"{name}.crt", "tls_key_file": folder / f"{name}.key"}
    files["tls_cert_file"].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files["tls_key_file"].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return {**files, "tls_ca_file": files["tls_cert_file"]}


async def test_peers_of_one_authority_talk_and_others_do_not(
    process_named: Any, peer_of: Any, request_with: Any, tmp_path: Path
) -> None:
    ours, others = certificate(tmp_path, "ours"), certificate(tmp_path, "others")
    process = process_named("transcript", **ours)
    server = build_server(process)
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
    credentials = server_credentials(process.settings)
    assert credentials is not None
    target = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    await server.start()
    outcomes = []
    try:
        for files in (ours, {**others, "tls_ca_file": ours["tls_ca_file"]}, {}):
            async with peer_of(target, **files) as peer:
                method = pb_grpc.HookHandlerServiceStub(peer.channel).HandleBeforeSpawn
                try:
                    with acting_for("acme"):
                        await peer.unary(method, request_with())
                    outcomes.append("allowed")
                except MeshError as error:
                    outcomes.append(error.reason)
    finally:
        await server.stop(None)
    assert outcomes == ["allowed", Reason.DEPENDENCY_UNAVAILABLE, Reason.DEPENDENCY_UNAVAILABLE]


async def test_certificate_that_cannot_be_read_ends_the_process_without_its_path(
    process_named: Any, tmp_path: Path
) -> None:
    missing = {"tls_cert_file": tmp_path / "missing.crt", "tls_key_file": tmp_path / "missing.key"}
    with pytest.raises(SystemExit) as caught:
        server_credentials(process_named("hook", **missing).settings)
    assert str(tmp_path) not in str(caught.value)
