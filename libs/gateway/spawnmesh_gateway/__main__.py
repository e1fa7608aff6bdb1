"""Write the configuration of a gateway.

`python -m spawnmesh_gateway FOLDER --listen 127.0.0.1:8080 --target session=127.0.0.1:50051 …`
writes `envoy.json` and the files that it names into the folder, for `envoy -c FOLDER/envoy.json`.
If Envoy finds the files elsewhere, as in a pod, `--installed-in` names that folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from spawnmesh_gateway.files import write_configuration
from spawnmesh_gateway.settings import GatewaySettings, HostPort, SettingsUnusable, Tls


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="spawnmesh_gateway", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--target", action="append", default=[], metavar="SERVICE=TARGET")
    parser.add_argument("--allowed-origin", action="append", default=[])
    parser.add_argument("--connect-protocol", action="store_true")
    parser.add_argument("--upstream-tls", type=PurePosixPath, metavar="FOLDER")
    parser.add_argument("--downstream-tls", type=PurePosixPath, metavar="FOLDER")
    parser.add_argument("--admin-socket", type=PurePosixPath)
    parser.add_argument("--metrics-listen", metavar="HOST:PORT")
    parser.add_argument("--installed-in", type=PurePosixPath, metavar="FOLDER")
    given = parser.parse_args(arguments)
    try:
        settings = GatewaySettings(
            HostPort.parse(given.listen),
            dict(target.partition("=")[::2] for target in given.target),
            upstream_tls=_tls(given.upstream_tls),
            downstream_tls=_tls(given.downstream_tls),
            allowed_origins=tuple(given.allowed_origin),
            connect_protocol=given.connect_protocol,
            folder=given.installed_in or PurePosixPath(given.folder.absolute()),
            admin_socket=given.admin_socket,
            metrics_listen=HostPort.parse(given.metrics_listen) if given.metrics_listen else None,
        )
    except SettingsUnusable as error:
        sys.exit(f"error: {error}")
    write_configuration(given.folder, settings)


def _tls(folder: PurePosixPath | None) -> Tls | None:
    """Return the files of a folder as cert-manager names them."""
    return None if folder is None else Tls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")


if __name__ == "__main__":
    main(sys.argv[1:])
