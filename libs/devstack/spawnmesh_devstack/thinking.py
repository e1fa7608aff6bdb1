"""A mesh together with the models of its agents."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from spawnmesh_devstack import members
from spawnmesh_devstack.forks import open_forks
from spawnmesh_devstack.models import Choice, ModelKind, config_for, scripted_environment
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.prepare import SCRIPTED_MODEL, SMOLLM2
from spawnmesh_devstack.smollm2 import require_smollm2
from spawnmesh_devstack.stack import Stack, open_stack


@asynccontextmanager
async def open_thinking_stack(
    data_dir: Path,
    report: Callable[[str], None],
    choice: Choice,
    ports: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    metrics_ports: Iterator[int] | None = None,
    forward_otlp: str | None = None,
) -> AsyncIterator[Stack]:
    """Open a mesh whose router has the chosen model, and the scripted ones beside it. The other
    arguments are as for `open_stack`.

    Raises StackError, also for SmolLM2 if it is not installed.
    """
    small = choice.kind is ModelKind.SMOLLM2
    if small:
        require_smollm2()
    scripted_port, smollm2_port = free_ports(2)
    all_ports = {SCRIPTED_MODEL: scripted_port, SMOLLM2: smollm2_port, **(ports or {})}
    servers = [members.scripted_model_member(all_ports[SCRIPTED_MODEL])]
    if small:
        servers.append(members.smollm2_member(all_ports[SMOLLM2]))
    config = config_for(choice, all_ports[SCRIPTED_MODEL], all_ports[SMOLLM2])
    given = {**scripted_environment(), **choice.secrets, **(environment or {})}
    with open_forks() as execute:
        async with open_stack(
            data_dir,
            report,
            router_config=config,
            ports=all_ports,
            environment=given,
            execute=execute,
            metrics_ports=metrics_ports,
            forward_otlp=forward_otlp,
        ) as stack:
            await stack.start(*servers)
            yield stack
