"""What the chart gives a process is what the process reads: each is started with exactly its rendered variables and files."""

import asyncio
import importlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc.aio
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from psycopg.conninfo import make_conninfo
from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import DeploymentServiceStub
from spawnmesh.hook.v1 import hook_service_pb2 as hook_rpc
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.migration_files import migration_files
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database
from spawnmesh_runtime.impersonation import use_token

from tests.support.deploy.connections import SMALLEST, beside_pool_at_rest, connected, until_connected
from tests.support.deploy.environment import (
    NOT_SERVING,
    SERVING,
    Place,
    container_of,
    health_of,
    health_over,
    printed_until_its_end,
    secret_files,
    started,
    until,
    variables,
)
from tests.support.deploy.rendering import VALUE_SETS, of_kind
from tests.support.serving import caller_at, client_tokens

PLAIN = {"POD_NAME", "POD_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES"}
ALL = (
    "session",
    "session-worker",
    "attachment-blob",
    "attachment-blob-worker",
    "transcript",
    "transcript-worker",
    "model-router",
    "hook",
    "hook-worker",
    "runner",
)


@pytest.mark.parametrize("component", ALL)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_variable_and_every_mounted_file_is_a_setting(values: str, component: str) -> None:
    container = container_of(component, values)
    package = container["args"][0]
    module = importlib.import_module(f"{package}.settings")
    pascal = "".join(part.capitalize() for part in package.removeprefix("spawnmesh_").split("_"))
    fields = set(getattr(module, f"{pascal}Settings").model_fields) | {"secrets_dir"}
    prefix = f"{package.removeprefix('spawnmesh_').upper()}_"
    names = set(variables(container)) - PLAIN | {file for _, _, file in secret_files(component, values)}
    assert {name for name in names if not name.startswith(prefix)} == set()
    assert {name.removeprefix(prefix).lower() for name in names} <= fields
    required = {name for name, field in _model(module, pascal).items() if field.is_required()}
    assert required <= {name.removeprefix(prefix).lower() for name in names}


def _model(module: Any, pascal: str) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(module, f"{pascal}Settings").model_fields
    return fields


@pytest.fixture(scope="module")
def smallest_pools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Values over the minimal ones: every pool is as small as may be."""
    pooled = [name for name in ALL if name != "runner"]
    assert {*pooled, "runner"} == set(of_kind("Deployment", "minimal"))
    file = tmp_path_factory.mktemp("values") / "pools.yaml"
    file.write_text(yaml.safe_dump({"services": {name: {"connections": SMALLEST} for name in pooled}}))
    return str(file)


@pytest.mark.parametrize("component", ALL)
async def test_process_becomes_ready_with_what_the_chart_gives_it_and_has_the_connections_counted_for_it(
    tmp_path: Path,
    keys: Path,
    postgres: Postgres,
    migrated: dict[str, ServiceDsn],
    s3: S3Endpoint,
    smallest_pools: str,
    component: str,
) -> None:
    place = Place(tmp_path, keys, migrated, s3)
    env = place.environment(component, smallest_pools)
    assert not any("postgresql://" in value for value in env.values())
    container = container_of(component, "minimal", smallest_pools)
    role = container["args"][0].removeprefix("spawnmesh_")
    others = await connected(
        postgres, "usename", role
    )  # Of services in this very process, which other tests use.
    async with started(container, env) as process:
        await until(place.health_port, SERVING, process)
        assert await health_of(place.health_port, "live") == SERVING
        if component != "runner":
            counted = SMALLEST + beside_pool_at_rest(component)
            await until_connected(postgres, "usename", role, counted, beside=others)
        process.terminate()
        printed = await printed_until_its_end(process)
    assert process.returncode == 0, printed


async def test_process_is_alive_and_not_ready_until_its_schema_is_there(
    tmp_path: Path, keys: Path, databases: dict[str, ServiceDsn], s3: S3Endpoint, fresh: ServiceDsn
) -> None:
    place = Place(tmp_path, keys, {**databases, "hook": fresh}, s3)
    async with started(container_of("hook", "minimal"), place.environment("hook")) as process:
        assert process.stdout is not None
        waiting = json.loads(await process.stdout.readline())
        assert (waiting["event"], waiting["reason"]) == (
            "schema_not_ready",
            "the schema is older: it lacks 0001_hook",
        )
        assert await health_of(place.health_port, "live") == SERVING
        assert await health_of(place.health_port) == NOT_SERVING
        await until(place.port, NOT_SERVING, process)
        assert await told_of(place.port, keys) == pb.Schema(
            state=pb.SCHEMA_STATE_BEHIND,
            known_migration_id=migration_files("spawnmesh_hook")[-1].migration_id,
            objection="the schema is older: it lacks 0001_hook",
        )
        await asyncio.to_thread(migrate, fresh.owner, package="spawnmesh_hook", schema="hook")
        await until(place.health_port, SERVING, process)
        assert await health_of(place.port) == SERVING
        assert (await told_of(place.port, keys)).state == pb.SCHEMA_STATE_CURRENT


async def test_process_that_waits_for_its_schema_lets_callers_take_another_replica(
    tmp_path: Path, keys: Path, databases: dict[str, ServiceDsn], s3: S3Endpoint, fresh: ServiceDsn
) -> None:
    place = Place(tmp_path, keys, {**databases, "hook": fresh}, s3)
    async with started(container_of("hook", "minimal"), place.environment("hook")) as process:
        await until(place.port, NOT_SERVING, process)
        async with caller_at(f"127.0.0.1:{place.port}", "hook") as peer:
            token = client_tokens(keys).client_token("acme", "somebody", 60.0)
            with use_token(token), pytest.raises(MeshError) as refused:
                await peer.unary(
                    HookServiceStub(peer.channel).ListPlugins,
                    hook_rpc.ListPluginsRequest(),
                    timeout_seconds=5,
                )
        assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        process.terminate()
        async with asyncio.timeout(20):
            assert await process.wait() == 0, "it can be stopped while it waits"


async def told_of(port: int, keys: Path) -> pb.Schema:
    """What the process says of its schema to an operator."""
    async with caller_at(f"127.0.0.1:{port}", "hook") as peer:
        with use_token(client_tokens(keys).admin_token("operator", 60.0)):
            ask = DeploymentServiceStub(peer.channel).DescribeReplica
            return (await peer.unary(ask, pb.DescribeReplicaRequest(), timeout_seconds=10)).replica.schema


@pytest.fixture
async def fresh(postgres: Postgres) -> ServiceDsn:
    """The hook's schema, empty, in a database of its own."""
    database = f"fresh_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=role, dbname=database) for role in ("hook", "hook_owner")
    )
    await asyncio.to_thread(prepare_database, postgres.superuser_dsn, {"hook": DatabaseUrls(app, owner)})
    return ServiceDsn(app, owner)


def certify(folder: Path, *hosts: str) -> tuple[bytes, bytes, bytes]:
    """Writes what is mounted for TLS, vouched for by itself; gives certificate, key and authority."""
    key, name = (
        generate_private_key(SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]),
    )
    now = utc_now()
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("tls.crt", pem), ("tls.key", private), ("ca.crt", pem)):
        (folder / file).write_bytes(content)
    return pem, private, pem


async def test_process_with_certificates_is_probed_in_plain_text_and_called_with_one(
    tmp_path: Path, keys: Path, migrated: dict[str, ServiceDsn], s3: S3Endpoint
) -> None:
    over = tmp_path / "tls.yaml"
    over.write_text("tls: {mode: secret, existingSecret: mesh-tls}\n")
    place, host = Place(tmp_path, keys, migrated, s3), "transcript.mesh.svc.cluster.local"
    pem, private, authority = certify(tmp_path / "transcript" / "run" / "secrets" / "tls", host)
    env = place.environment("transcript", str(over))
    async with started(container_of("transcript", "minimal", str(over)), env) as process:
        await until(place.health_port, SERVING, process)
        assert await health_of(place.port) == 0, "the service itself is not to be had in plain text"
        for shown, wanted in (((private, pem), SERVING), ((None, None), 0)):
            credentials = grpc.ssl_channel_credentials(authority, *shown)
            named = [("grpc.ssl_target_name_override", host)]
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{place.port}", credentials, options=named
            ) as channel:
                assert await health_over(channel) == wanted


async def test_command_calls_a_mesh_with_certificates_through_localhost(
    tmp_path: Path, keys: Path, migrated: dict[str, ServiceDsn], s3: S3Endpoint
) -> None:
    """As through `kubectl port-forward`: the names are those that the chart has certificates made for."""
    over = tmp_path / "tls.yaml"
    over.write_text("tls: {mode: secret, existingSecret: mesh-tls}\n")
    place, tls = Place(tmp_path, keys, migrated, s3), tmp_path / "transcript" / "run" / "secrets" / "tls"
    certify(tls, *of_kind("Certificate", "production")["transcript"]["spec"]["dnsNames"])
    env = place.environment("transcript", str(over))
    async with started(container_of("transcript", "minimal", str(over)), env) as process:
        await until(place.health_port, SERVING, process)
        by_name = {
            "SPAWNMESH_SESSION_TARGET": "localhost:1",
            "SPAWNMESH_TRANSCRIPT_TARGET": f"localhost:{place.port}",
        }
        files = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
        shown = {f"SPAWNMESH_TLS_{name}_FILE": str(tls / file) for name, file in files.items()}

        async def lines(**more: str) -> str:
            env = {**by_name, **more, "PATH": "/usr/bin:/bin", "SPAWNMESH_TOKEN": "x"}
            async with started({"args": ["spawnmesh_client", "doctor"]}, env) as doctor:
                return (await doctor.communicate())[0].decode()

        for printed, answer in zip(
            await asyncio.gather(lines(**shown), lines()),
            ("serves, with every RPC", "does not answer"),
            strict=True,
        ):
            (line,) = [line for line in printed.splitlines() if "transcript" in line.split()[:2]]
            assert answer in line
