"""Prepare what the processes need before they start: ports, schemas, the router's configuration."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spawnmesh_postgres.migrations import migrate

from spawnmesh_devstack.console import CONSOLE
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import SERVICES, snake
from spawnmesh_devstack.ports import PAIR_DISTANCE, free_ports, require_free
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database

OTLP, TRACES, S3, GATEWAY = "otlp", "traces", "s3", "gateway"
SCRIPTED_MODEL, SMOLLM2 = "scripted-model", "smollm2"


def choose_ports(asked: Mapping[str, int]) -> dict[str, int]:
    """Return a port for every listener; for `s3` only if one is requested, because the S3 server
    picks its own.

    Raises PortBusy for a port in use, and StackError for an unknown name.
    """
    needed = (*SERVICES, GATEWAY, CONSOLE, OTLP, TRACES, SCRIPTED_MODEL, SMOLLM2)
    if unknown := sorted(set(asked) - {*needed, S3}):
        raise StackError(
            f"nothing is called {', '.join(unknown)}; a port can be given for {', '.join((*needed, S3))}"
        )
    for name, port in asked.items():
        require_free(port, name)
        if name == S3:
            require_free(port + PAIR_DISTANCE, "s3's gRPC")
    free = [name for name in needed if name not in asked]
    return {**dict(zip(free, free_ports(len(free)), strict=True)), **asked}


async def prepare_schemas(superuser_dsn: str, report: Callable[[str], None]) -> dict[str, ServiceDsn]:
    """Create the mesh's database and migrate the schema of every service to its newest version."""
    databases = await create_service_database(superuser_dsn, [snake(service) for service in SERVICES])
    report("bringing the schemas up to date")
    await asyncio.gather(*(asyncio.to_thread(_migrate, name, dsn.owner) for name, dsn in databases.items()))
    return databases


def write_router_config(data_dir: Path, config: Mapping[str, Any]) -> Path:
    """Write the configuration as a file (0600), replaced atomically."""
    file = data_dir / "router.json"
    half = data_dir / ".router.json.new"
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(config, stream, indent=2)
    half.rename(file)
    return file


def _migrate(service: str, owner_dsn: str) -> None:
    migrate(owner_dsn, package=f"spawnmesh_{service}", schema=service)
