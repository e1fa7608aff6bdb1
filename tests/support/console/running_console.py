"""A console that runs as a process, for the tests of its pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.fernet import Fernet
from spawnmesh_devstack.members import Member, Readiness, process_variables, python_module
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.stack import Stack


@dataclass(frozen=True)
class RunningConsole:
    """A console, and the mesh that it shows."""

    stack: Stack
    name: str
    base_url: str
    sign_in_file: Path
    cookie_key_file: Path

    @property
    def host(self) -> str:
        """The host and port under which it is served."""
        return self.base_url.partition("://")[2]

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.stack.processes[self.name].pid


async def start_console(
    stack: Stack, folder: Path, name: str = "console", settings: Mapping[str, str] | None = None
) -> RunningConsole:
    """Start a console as a process of the mesh, with its files in the folder.

    `settings` are further variables, without their prefix.
    """
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    key_file, sign_in_file = folder / "cookie.key", folder / "sign-in.json"
    key_file.write_bytes(Fernet.generate_key())
    own = {
        "COOKIE_KEY_FILE": str(key_file),
        "SIGN_IN_FILE": str(sign_in_file),
        **{f"{service.replace('-', '_').upper()}_TARGET": to for service, to in stack.targets.items()},
        **stack.trace_access.variables(),
        **(settings or {}),
    }
    variables = {
        **process_variables("console", port, stack.keys, stack.otlp_endpoint),
        **{f"CONSOLE_{variable}": value for variable, value in own.items()},
    }
    argv = python_module("spawnmesh_console", "serve")
    await stack.start(Member(name, argv, variables, Readiness.TCP, port))
    return RunningConsole(stack, name, f"http://{LOOPBACK}:{port}", sign_in_file, key_file)
