"""Each process starts with exactly its rendered variables and files."""

import asyncio
import importlib
import json
from contextlib import AsyncExitStack
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
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.migration_files import migration_files
from spawnmesh_postgres.migrations import migrate
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database
from spawnmesh_runtime.impersonation import use_token

from tests.support.deploy.connections import LISTENING, SMALLEST, connected, until_connected
from tests.support.deploy.environment import (
    NOT_SERVING,
    PLAIN_VALUES,
    SERVING,
    Place,
    container_of,
    forked,
    health_of,
    health_over,
    printed_until_its_end,
    secret_files,
    started,
    until,
    variables,
)
from tests.support.deploy.pod_here import Ended, pod_of, run_container
from tests.support.deploy.rendering import ROOT, VALUE_SETS, of_kind
from tests.support.forked_process import ForkedProcess
from tests.support.serving import caller_at, client_tokens

PLAIN = {"POD_NAME", "POD_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES", "PGSSLMODE", "PGSSLROOTCERT"}
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
    """Write values over the minimal ones that make every pool as small as it may be."""
    pooled = [name for name in ALL if name != "runner"]
    assert {*pooled, "runner"} == set(of_kind("Deployment", "minimal"))
    file = tmp_path_factory.mktemp("values") / "pools.yaml"
    file.write_text(yaml.safe_dump({"services": {name: {"connections": SMALLEST} for name in pooled}}))
    return str(file)


# The runner has no connections. Jobs that the doctor leaves keep connections of session-worker.
UNCOUNTED = ("runner", "session-worker")


async def test_session_worker_without_jobs_has_the_counted_connections(
    tmp_path: Path,
    keys: Path,
    postgres: Postgres,
    migrated: dict[str, ServiceDsn],
    s3: S3Endpoint,
    smallest_pools: str,
) -> None:
    place = Place(tmp_path, keys, migrated, s3)
    env = place.environment("session-worker", smallest_pools)
    others = await connected(postgres, "usename", "session")
    async with started(container_of("session-worker", "minimal", smallest_pools), env) as process:
        await until(place.health_port, SERVING, process)
        counted = SMALLEST + LISTENING["session-worker"]
        await until_connected(postgres, "usename", "session", counted, beside=others)


@pytest.mark.timeout(300)
async def test_all_processes_of_the_chart_have_the_counted_connections_and_satisfy_the_doctor(
    tmp_path: Path,
    keys: Path,
    postgres: Postgres,
    migrated: dict[str, ServiceDsn],
    s3: S3Endpoint,
    smallest_pools: str,
    fork_server: ForkServer,
) -> None:
    places = {name: Place(tmp_path, keys, migrated, s3) for name in ALL}
    targets = {
        f"dns:///{name}.mesh.svc.cluster.local:50051": f"127.0.0.1:{place.port}"
        for name, place in places.items()
    }
    (provider_port,) = free_ports(1)
    # Services in this process, which other tests use, have connections too.
    others = {role: await connected(postgres, "usename", role) for role in migrated}
    counted = dict.fromkeys(migrated, 0)

    async def start_together(exits: AsyncExitStack, names: list[str]) -> None:
        """Start workloads in a random order, as Kubernetes does, and wait until they are at rest."""
        for name in names:
            env = places[name].environment(name, smallest_pools)
            assert not any("postgresql://" in value for value in env.values())
            if name == "model-router":
                use_provider(places[name].root / name, provider_port)
            env = {key: targets.get(value, value) for key, value in env.items()}
            container = container_of(name, "minimal", smallest_pools)
            processes[name] = await exits.enter_async_context(forked(fork_server, container, env))
            if name not in UNCOUNTED:
                counted[container["args"][0].removeprefix("spawnmesh_")] += SMALLEST + LISTENING.get(name, 0)
        await asyncio.gather(*(until(places[name].health_port, SERVING, processes[name]) for name in names))
        for name in names:
            assert await health_of(places[name].health_port, "live") == SERVING, name
        for role, count in counted.items():
            if role != "session" or "session-worker" not in names:
                await until_connected(postgres, "usename", role, count, beside=others[role])

    async def doctor_outside() -> Ended:
        """Run the doctor as an operator does who has the key and a port of each service."""
        env = {f"SPAWNMESH_{name.upper().replace('-', '_')}_TARGET": f"127.0.0.1:{places[name].port}"
               for name in ("session", "transcript", "attachment-blob", "model-router", "hook")}  # fmt: skip
        env |= {
            "SPAWNMESH_SIGNING_KEY_FILE": str(keys / "client.pem"),
            "SPAWNMESH_TENANT": "spawnmesh-doctor",
        }
        command = {"args": ["spawnmesh_command", "doctor", "--deep"]}
        async with forked(fork_server, command, {**env, "PATH": "/usr/bin:/bin"}) as process:
            printed, _ = await process.communicate()
        return Ended(await process.wait(), printed.decode())

    async def doctor_inside() -> Ended:
        """Run the pod of `helm test` with a token as the notes tell an operator to make it."""
        token = client_tokens(keys).client_token("spawnmesh-doctor", "test", 600.0)
        secrets = {"spawnmesh-test-token": {"token": token}}
        return await run_container(
            fork_server, *pod_of("doctor", "minimal", PLAIN_VALUES), tmp_path / "in", secrets, targets
        )

    processes: dict[str, ForkedProcess] = {}
    workers = [name for name in ALL if name.endswith("-worker")]
    async with AsyncExitStack() as exits:
        provider = {"args": ["tests.support.model_router.upstream", str(provider_port)]}
        bare = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        await exits.enter_async_context(forked(fork_server, provider, bare))
        await start_together(exits, [name for name in ALL if name not in workers])
        without_workers = await doctor_outside()
        await start_together(exits, workers)
        with_all, inside = await doctor_outside(), await doctor_inside()
        for process in processes.values():
            process.terminate()
        printed = await asyncio.gather(*map(printed_until_its_end, processes.values()))
    for (name, process), text in zip(processes.items(), printed, strict=True):
        assert process.returncode == 0, f"{name}: {text}"
    assert (without_workers.code, "no session-worker is at work" in without_workers.printed) == (1, True)
    assert with_all.code == 0, with_all.printed
    for check in ("schemas", "workers", "tenant", "storage", "providers", "clock", "run"):
        assert f"ok  {check}" in with_all.printed
    for name in workers:
        assert f"1 {name}" in with_all.printed
    assert inside.code == 0, inside.printed
    for check in ("token", "storage", "providers", "run"):
        assert f"ok  {check}" in inside.printed


async def test_doctor_of_helm_test_without_a_token_ends_and_says_so(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    ended = await run_container(fork_server, *pod_of("doctor", "minimal", PLAIN_VALUES), tmp_path, {}, {})
    assert ended.code == 1
    assert "there is neither SPAWNMESH_TOKEN nor a signing key" in ended.printed


def use_provider(router: Path, port: int) -> None:
    """Give the provider of the rendered configuration a key and an address on this machine."""
    (router / "openai").write_text("key\n")
    file = router / "etc/spawnmesh/router.json"
    config = json.loads(file.read_text().replace("/run/secrets/providers", str(router)))
    config["providers"]["openai"]["base_url"] = f"http://127.0.0.1:{port}/v1"
    file.write_text(json.dumps(config))


async def test_process_is_alive_and_not_ready_until_its_schema_is_there(
    fork_server: ForkServer,
    tmp_path: Path,
    keys: Path,
    databases: dict[str, ServiceDsn],
    s3: S3Endpoint,
    fresh: ServiceDsn,
) -> None:
    place = Place(tmp_path, keys, {**databases, "hook": fresh}, s3)
    async with forked(fork_server, container_of("hook", "minimal"), place.environment("hook")) as process:
        assert process.stdout is not None
        waiting = json.loads(await process.stdout.readline())
        assert (waiting["event"], waiting["reason"]) == (
            "schema_not_ready",
            "the schema is older: it lacks 0001_hook",
        )
        assert await health_of(place.health_port, "live") == SERVING
        assert await health_of(place.health_port) == NOT_SERVING
        await until(place.port, NOT_SERVING, process)
        assert await schema_of(place.port, keys) == pb.Schema(
            state=pb.SCHEMA_STATE_BEHIND,
            known_migration_id=migration_files("spawnmesh_hook")[-1].migration_id,
            objection="the schema is older: it lacks 0001_hook",
        )
        await asyncio.to_thread(migrate, fresh.owner, package="spawnmesh_hook", schema="hook")
        await until(place.health_port, SERVING, process)
        assert await health_of(place.port) == SERVING
        assert (await schema_of(place.port, keys)).state == pb.SCHEMA_STATE_CURRENT


async def test_process_that_waits_for_its_schema_lets_callers_take_another_replica(
    fork_server: ForkServer,
    tmp_path: Path,
    keys: Path,
    databases: dict[str, ServiceDsn],
    s3: S3Endpoint,
    fresh: ServiceDsn,
) -> None:
    place = Place(tmp_path, keys, {**databases, "hook": fresh}, s3)
    async with forked(fork_server, container_of("hook", "minimal"), place.environment("hook")) as process:
        await until(place.port, NOT_SERVING, process)
        async with caller_at(f"127.0.0.1:{place.port}", "hook") as peer:
            token = client_tokens(keys).client_token("acme", "test", 60.0)
            with use_token(token), pytest.raises(MeshError) as refused:
                await peer.unary(
                    HookServiceStub(peer.channel).ListPlugins,
                    hook_rpc.ListPluginsRequest(),
                    timeout_seconds=60,
                )
        assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0, "it can be stopped while it waits"


async def schema_of(port: int, keys: Path) -> pb.Schema:
    """Return the schema that the process describes to an operator."""
    async with caller_at(f"127.0.0.1:{port}", "hook") as peer:
        with use_token(client_tokens(keys).admin_token("operator", 60.0)):
            describe = DeploymentServiceStub(peer.channel).DescribeReplica
            answer = await peer.unary(describe, pb.DescribeReplicaRequest(), timeout_seconds=60)
            return answer.replica.schema


@pytest.fixture
async def fresh(postgres: Postgres) -> ServiceDsn:
    """Create an empty schema of the hook service in a separate database."""
    database = f"fresh_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=role, dbname=database) for role in ("hook", "hook_owner")
    )
    await asyncio.to_thread(prepare_database, postgres.superuser_dsn, {"hook": DatabaseUrls(app, owner)})
    return ServiceDsn(app, owner)


def certify(folder: Path, *hosts: str) -> tuple[bytes, bytes, bytes]:
    """Write a self-signed certificate as it is mounted; return certificate, key and authority."""
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
    fork_server: ForkServer, tmp_path: Path, keys: Path, migrated: dict[str, ServiceDsn], s3: S3Endpoint
) -> None:
    over = tmp_path / "tls.yaml"
    over.write_text("tls: {mode: secret, existingSecret: mesh-tls}\n")
    place, host = Place(tmp_path, keys, migrated, s3), "transcript.mesh.svc.cluster.local"
    pem, private, authority = certify(tmp_path / "transcript" / "run" / "secrets" / "tls", host)
    env = place.environment("transcript", str(over))
    async with forked(fork_server, container_of("transcript", "minimal", str(over)), env) as process:
        await until(place.health_port, SERVING, process)
        assert await health_of(place.port) == 0, "the service itself does not answer plain text"
        for shown, wanted in (((private, pem), SERVING), ((None, None), 0)):
            credentials = grpc.ssl_channel_credentials(authority, *shown)
            named = [("grpc.ssl_target_name_override", host)]
            async with grpc.aio.secure_channel(
                f"127.0.0.1:{place.port}", credentials, options=named
            ) as channel:
                assert await health_over(channel) == wanted


async def test_command_calls_a_mesh_with_certificates_through_localhost(
    fork_server: ForkServer, tmp_path: Path, keys: Path, migrated: dict[str, ServiceDsn], s3: S3Endpoint
) -> None:
    """As through `kubectl port-forward`, with a certificate for the names in the chart."""
    over = tmp_path / "tls.yaml"
    over.write_text("tls: {mode: secret, existingSecret: mesh-tls}\n")
    place, tls = Place(tmp_path, keys, migrated, s3), tmp_path / "transcript" / "run" / "secrets" / "tls"
    certify(tls, *of_kind("Certificate", "production")["transcript"]["spec"]["dnsNames"])
    env = place.environment("transcript", str(over))
    async with forked(fork_server, container_of("transcript", "minimal", str(over)), env) as process:
        await until(place.health_port, SERVING, process)
        by_name = {
            "SPAWNMESH_SESSION_TARGET": "localhost:1",
            "SPAWNMESH_TRANSCRIPT_TARGET": f"localhost:{place.port}",
        }
        files = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
        shown = {f"SPAWNMESH_TLS_{name}_FILE": str(tls / file) for name, file in files.items()}

        async def lines(**more: str) -> str:
            env = {**by_name, **more, "PATH": "/usr/bin:/bin", "SPAWNMESH_TOKEN": "x"}
            async with forked(fork_server, {"args": ["spawnmesh_command", "doctor"]}, env) as doctor:
                return (await doctor.communicate())[0].decode()

        for printed, answer in zip(
            await asyncio.gather(lines(**shown), lines()),
            ("serves, with every RPC", "does not answer"),
            strict=True,
        ):
            (line,) = [line for line in printed.splitlines() if "transcript" in line.split()[:2]]
            assert answer in line
