"""Write the files of a gateway."""

from pathlib import Path

from spawnmesh_gateway.bootstrap import configuration
from spawnmesh_gateway.settings import GatewaySettings


def write_configuration(folder: Path, settings: GatewaySettings) -> None:
    """Write the files of a gateway into the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in configuration(settings).items():
        (folder / name).write_bytes(content)
