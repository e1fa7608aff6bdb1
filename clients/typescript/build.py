"""Build the package: generate code from the contracts, compile it, and pack it.

`python clients/typescript/build.py build/contracts build` reads the descriptors that
`make contracts` wrote into the first folder, and writes `spawnmesh-client-<version>.tgz` into the
second one. Packages are installed only if `package.json` is newer than those that are here.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

HERE = Path(__file__).resolve().parent
LICENSE = HERE.parents[1] / "LICENSE"
INSTALL = ["npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"]
INSTALL += ["--prefer-offline", "--fetch-timeout=60000", "--loglevel=error"]
_RUNTIME = "google/protobuf/"
"""The package @bufbuild/protobuf has the code of these files."""


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), cwd=HERE)  # noqa: S603 - the commands below
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}; see the lines above")


def install() -> None:
    installed, wanted = HERE / "node_modules" / ".package-lock.json", HERE / "package.json"
    if not installed.exists() or installed.stat().st_mtime < wanted.stat().st_mtime:
        run(*INSTALL)


def generate(descriptors: Path) -> None:
    target = HERE / "src" / "gen"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    run(
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--descriptor_set_in={descriptors}",
        f"--plugin={HERE / 'node_modules/.bin/protoc-gen-es'}",
        f"--es_out={target}",
        "--es_opt=target=ts,import_extension=js",
        *(file.name for file in files if not file.name.startswith(_RUNTIME)),
    )


def main() -> None:
    contracts, target = (Path(name).resolve() for name in sys.argv[1:])
    install()
    generate(contracts / "spawnmesh.binpb")
    shutil.rmtree(HERE / "dist", ignore_errors=True)
    run("npm", "run", "--silent", "build")
    shutil.copyfile(LICENSE, HERE / "LICENSE")
    target.mkdir(parents=True, exist_ok=True)
    run("npm", "pack", "--silent", "--pack-destination", target)


if __name__ == "__main__":
    main()
