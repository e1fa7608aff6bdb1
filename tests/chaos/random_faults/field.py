"""The mesh under test: two replicas of every process, and a link before everything they call."""

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spawnmesh_devstack.members import (
    SERVICES,
    Member,
    Readiness,
    process_variables,
    python_module,
    scripted_model_member,
)
from spawnmesh_devstack.models import scripted_config, scripted_environment
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.prepare import SCRIPTED_MODEL
from spawnmesh_devstack.processes import Execute, execute
from spawnmesh_devstack.stack import Stack, open_stack

from tests.chaos.random_faults import plugin
from tests.chaos.random_faults.plan import MODEL, NODES, PLUGIN, POSTGRES, S3
from tests.support.citus.servers import CitusPostgres
from tests.support.links import Link, open_link, to_address, to_postgres

ROOT = Path(__file__).resolve().parents[3]
DISK_BYTES = 256 * 1024 * 1024
_CALLERS = ("SESSION", "ATTACHMENT_BLOB", "TRANSCRIPT", "MODEL_ROUTER", "HOOK", "RUNNER")
_PATIENT_DRAIN = {f"{name.replace('-', '_').upper()}_DRAIN_GRACE_SECONDS": "3" for name in SERVICES}


@dataclass(frozen=True)
class Field:
    """The mesh, the links by name, and the disk of the workspaces; None without the right to
    mount one. `tenants` are those of the load.
    """

    stack: Stack
    links: Mapping[str, Link]
    disk: Path | None
    plugin_endpoint: str
    targets: Mapping[str, str]
    """Each service's target, by its kebab id, through the links."""

    @property
    def servers(self) -> dict[str, Postgres]:
        """The servers of the database by the targets of their faults."""
        coordinator = self.stack.postgres
        workers = coordinator.cluster.workers if isinstance(coordinator, CitusPostgres) else ()
        return {POSTGRES: coordinator, **dict(zip(NODES, workers, strict=False))}

    @property
    def workspace_root(self) -> Path:
        """The directory of the runners' workspaces."""
        return self.stack.workspace_root if self.disk is None else self.disk / "workspaces"


@asynccontextmanager
async def open_field(
    data_dir: Path,
    tenants: list[str],
    collect_grace_seconds: int,
    report: Callable[[str], None],
    *,
    is_linked: bool = True,
    execute: Execute = execute,
    new_postgres: NewPostgres = Postgres,
) -> AsyncIterator[Field]:
    """Start everything. Faults on connections act on the links.

    If it is not linked, the services and clients call each other directly.
    """
    found: list[Stack] = []
    plugin_port, model_port = free_ports(2)

    def late(find: Callable[[Stack], Callable[..., object]]) -> Callable[[], object]:
        return lambda: find(found[0])()

    async with AsyncExitStack() as exits:

        async def link(find: Callable[[Stack], Callable[..., object]]) -> Link:
            return await exits.enter_async_context(open_link(late(find)))  # type: ignore[arg-type]

        links = {S3: await link(lambda stack: to_address(stack.s3.endpoint.endpoint))}
        for port, name in ((plugin_port, PLUGIN), (model_port, MODEL)):
            links[name] = await link(lambda _, port=port: to_address(f"{LOOPBACK}:{port}"))
        for service in SERVICES:
            links[f"{POSTGRES} of {service}"] = await link(lambda stack: to_postgres(stack.superuser_dsn))
            for number, name in enumerate((service, f"{service}-2")):
                links[name] = await link(
                    lambda stack, service=service, number=number: to_address(
                        _addresses(stack.targets[service])[number]
                    )
                )
        targets = {name: f"ipv4:{links[name].target},{links[f'{name}-2'].target}" for name in SERVICES}
        data_dir.mkdir(parents=True)
        disk = exits.enter_context(small_disk(data_dir / "disk"))
        environment = {
            **scripted_environment(),
            **(_through_links(links, targets) if is_linked else _PATIENT_DRAIN),
            "ATTACHMENT_BLOB_COLLECT_INTERVAL_SECONDS": "5",
            "ATTACHMENT_BLOB_COLLECT_GRACE_SECONDS": str(collect_grace_seconds),
        }
        if disk is not None:
            environment["RUNNER_WORKSPACE_ROOT"] = str(disk / "workspaces")
        stack = await exits.enter_async_context(
            open_stack(
                data_dir / "data",
                report,
                replicas=2,
                runner_count=2,
                router_config=scripted_config(int(links[MODEL].target.rpartition(":")[2])),
                ports={SCRIPTED_MODEL: model_port},
                environment=environment,
                before_start=found.append,
                execute=execute,
                new_postgres=new_postgres,
            )
        )
        endpoint = f"grpc://{links[PLUGIN].target}"
        await stack.start(
            scripted_model_member(model_port), _plugin_member(stack, plugin_port, endpoint, tenants)
        )
        yield Field(stack, links, disk, endpoint, targets if is_linked else stack.targets)


def _through_links(links: Mapping[str, Link], targets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that send every connection of a service through a link."""
    variables = {"ATTACHMENT_BLOB_S3_ENDPOINT": links[S3].target}
    variables["ATTACHMENT_BLOB_STS_ENDPOINT"] = f"http://{links[S3].target}"
    for name in SERVICES:
        snake = name.replace("-", "_")
        at = links[f"{POSTGRES} of {name}"].target
        variables[f"{snake.upper()}_DATABASE_URL"] = f"postgresql://{snake}@{at}/spawnmesh"
        for caller in _CALLERS:
            variables[f"{caller}_{snake.upper()}_TARGET"] = targets[name]
    return variables


def _addresses(target: str) -> list[str]:
    return target.removeprefix("ipv4:").split(",")


def _plugin_member(stack: Stack, port: int, endpoint: str, tenants: list[str]) -> Member:
    env = process_variables(PLUGIN, port, stack.keys, stack.otlp_endpoint)
    env |= {
        "PYTHONPATH": str(ROOT),
        "CHAOS_PLUGIN_TENANTS": json.dumps(tenants),
        "CHAOS_PLUGIN_ENDPOINT": endpoint,
    }
    return Member(PLUGIN, python_module(plugin.__name__), env, Readiness.GRPC, port)


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    """Mount a file system of its own at `path`; None without the right to do so."""
    path.mkdir()
    options = f"size={DISK_BYTES},mode=755"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)
