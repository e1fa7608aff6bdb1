"""Write the contracts for other tools, as an image of descriptors and as text.

`python libs/protos/bundle.py build/contracts` writes these into the folder `build/contracts`:

- `spawnmesh.binpb`, a FileDescriptorSet of the contracts and their imports, comments included;
- `spawnmesh-protos.zip`, the `.proto` files of the contracts and of their imports;
- `imports`, the `.proto` files of the imports alone, which `buf.yaml` names as a module.

The files of the details of an error are among the imports, although no contract imports them.
"""

import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from generate import (
    INCLUDES,
    OPERATIONS,
    PROTOS,
    RULES,
    compile_contracts,
    write_operations,
    write_rules,
)
from google.protobuf.descriptor_pb2 import FileDescriptorSet

ERROR_DETAILS = ("google/rpc/error_details.proto", "google/rpc/status.proto")
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time of a zip. A zip of the same files has the same bytes."""
_READABLE = 0o644
"""The mode of the unpacked files."""


def write_bundle(folder: Path) -> None:
    """Write all three. Raises SystemExit if the contracts do not compile."""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / "spawnmesh.binpb"
    compile_contracts(
        "--include_imports",
        "--include_source_info",
        f"--descriptor_set_out={image}",
        others=ERROR_DETAILS,
    )
    names = sorted(file.name for file in FileDescriptorSet.FromString(image.read_bytes()).file)
    write_imports(folder / "imports", [name for name in names if not (PROTOS / name).exists()])
    write_zip(folder / "spawnmesh-protos.zip", names, folder / "imports")


def write_imports(folder: Path, names: list[str]) -> None:
    """Write the text of each import, and remove other files from the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        if name == RULES:
            write_rules(folder)
        elif name == OPERATIONS:
            write_operations(folder)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_existing(name, INCLUDES), folder / name)


def write_zip(target: Path, names: list[str], imports: Path) -> None:
    """Write a zip with the `.proto` files at the paths by which they are imported. All else is in
    the folder `spawnmesh`, so that the zip can be unpacked beside other files.
    """
    files = {name: _existing(name, (PROTOS, imports)) for name in names}
    files["spawnmesh/README.md"] = PROTOS / "README.md"
    files["spawnmesh/LICENSE"] = PROTOS.parent / "LICENSE"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EARLIEST_TIME)
            entry.external_attr = _READABLE << 16
            zipped.writestr(entry, files[name].read_bytes(), zipfile.ZIP_DEFLATED)


def _existing(name: str, folders: Iterable[Path]) -> Path:
    return next(folder / name for folder in folders if (folder / name).exists())


def main() -> None:
    folder = Path(sys.argv[1])
    write_bundle(folder)
    print(f"{folder}: contracts written as spawnmesh.binpb and spawnmesh-protos.zip")


if __name__ == "__main__":
    main()
