"""Compile the contracts in `protos/` into the stubs of this package.

`python libs/protos/generate.py` writes the stubs. With `--check` it exits 1 if the committed stubs
differ from what the contracts give.
"""

import argparse
import filecmp
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import buf.validate.validate_pb2  # noqa: F401 - the options of the rules themselves are known by it
import grpc_tools
from google.protobuf import descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import error_details_pb2
from grpc_tools import protoc
from proto_text import print_proto
from protovalidate import ViolationPb

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parents[1] / "protos"
INCLUDES = (Path(grpc_tools.__file__).parent / "_proto", Path(error_details_pb2.__file__).parents[2])
"""The folders with the text of imports: `google/protobuf`, and `google/rpc`."""
RULES = "buf/validate/validate.proto"
OPERATIONS = "google/longrunning/operations.proto"
"""An import whose text is in a file of another name in its Python package."""
_TEXT_OF_OPERATIONS = "google/longrunning/operations_proto.proto"
_PACKAGES = ("spawnmesh", "buf")


def contracts() -> list[str]:
    return sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))


def write_rules(folder: Path) -> None:
    """Write the validation rules as text, for the compiler to import. No package has that text."""
    file = folder / RULES
    file.parent.mkdir(parents=True)
    version = importlib.metadata.version("protovalidate")
    head = f"// Printed from the descriptor in protovalidate {version}, licensed under Apache-2.0.\n"
    file.write_text(head + print_proto(rules_descriptor()))


def write_operations(folder: Path) -> None:
    """Write the import of long-running operations under the name that contracts import."""
    text = next(path for include in INCLUDES if (path := include / _TEXT_OF_OPERATIONS).exists())
    (folder / OPERATIONS).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(text, folder / OPERATIONS)


def rules_descriptor() -> FileDescriptorProto:
    """Return the descriptor of the file of the validation rules, as the validator has it."""
    return FileDescriptorProto.FromString(ViolationPb.desc().file.proto.to_binary())


def compile_contracts(*options: str, others: Sequence[str] = ()) -> None:
    """Run the compiler on all contracts, and on `others`. Raises SystemExit if it fails.

    The rules are compiled from their descriptor: a process that has the stubs and the validator
    refuses two files of rules that differ in a byte.
    """
    with tempfile.TemporaryDirectory() as scratch:
        known = FileDescriptorSet()
        for module in (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2):
            module.DESCRIPTOR.CopyToProto(known.file.add())
        known.file.append(rules_descriptor())
        descriptors = Path(scratch) / "rules.binpb"
        descriptors.write_bytes(known.SerializeToString())
        write_operations(Path(scratch))
        folders = [f"-I{folder}" for folder in (PROTOS, *INCLUDES, scratch)]
        arguments = [*folders, f"--descriptor_set_in={descriptors}", *options, *contracts(), *others]
        if protoc.main(["protoc", *arguments]) != 0:
            sys.exit("the contracts do not compile; see the lines above")


def generate(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    compile_contracts(
        f"--mypy_out=quiet:{target}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
    )
    # The stubs import the module of the rules, so that a program needs no package for it.
    compile_contracts(f"--python_out={target}", others=[RULES])
    for folder in [target / "spawnmesh", *(p for p in (target / "spawnmesh").rglob("*") if p.is_dir())]:
        if folder.name != "__pycache__":
            (folder / "__init__.py").touch()
    (target / "spawnmesh" / "py.typed").touch()


def differing(expected: Path, actual: Path) -> list[str]:
    def stubs(root: Path) -> set[str]:
        return {
            str(p.relative_to(root))
            for package in _PACKAGES
            for p in (root / package).rglob("*.py*")
            if p.suffix in (".py", ".pyi", ".typed")
        }

    return sorted(
        name
        for name in stubs(expected) | stubs(actual)
        if not (expected / name).exists()
        or not (actual / name).exists()
        or not filecmp.cmp(expected / name, actual / name, shallow=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        with tempfile.TemporaryDirectory() as scratch:
            generate(Path(scratch))
            names = differing(Path(scratch), HERE)
        if names:
            sys.exit("stubs differ from the contracts; run `make protos`:\n  " + "\n  ".join(names))
        print(f"{len(contracts())} contracts, stubs are up to date")
    else:
        generate(HERE)
        print(f"{len(contracts())} contracts compiled")


if __name__ == "__main__":
    main()
