"""Compiles the contracts in `protos/`: stubs into this package, and an image for the linter.

python libs/protos/generate.py writes the stubs python libs/protos/generate.py --check exits 1 when
the committed stubs differ from what the contracts give python libs/protos/generate.py --image F
writes a descriptor image of the contracts, comments included
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2
from grpc_tools import protoc
from protovalidate import ViolationPb

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parents[1] / "protos"
RULES = "buf/validate/validate.proto"
_PACKAGES = ("spawnmesh", "buf")


def contracts() -> list[str]:
    return sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))


def write_rules(path: Path) -> None:
    """Write the descriptors of the validation rules, for which this repository has no `.proto`
    file, for the compiler to import.
    """
    known = descriptor_pb2.FileDescriptorSet()
    for module in (descriptor_pb2, duration_pb2, field_mask_pb2, timestamp_pb2):
        module.DESCRIPTOR.CopyToProto(known.file.add())
    known.file.add().ParseFromString(ViolationPb.desc().file.proto.to_binary())
    path.write_bytes(known.SerializeToString())


def compile_contracts(*options: str, rules_too: bool = False) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        rules = Path(scratch) / "rules.binpb"
        write_rules(rules)
        include = Path(grpc_tools.__file__).parent / "_proto"
        arguments = [
            "protoc",
            f"-I{PROTOS}",
            f"-I{include}",
            f"--descriptor_set_in={rules}",
            *options,
            *contracts(),
            *([RULES] if rules_too else []),
        ]
        if protoc.main(arguments) != 0:
            sys.exit("the contracts do not compile; see the lines above")


def generate(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    compile_contracts(
        f"--mypy_out=quiet:{target}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
    )
    # The stubs import the module of the rules, so that a program needs no package for it.
    compile_contracts(f"--python_out={target}", rules_too=True)
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
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    if options.image:
        options.image.parent.mkdir(parents=True, exist_ok=True)
        compile_contracts(
            "--include_imports", "--include_source_info", f"--descriptor_set_out={options.image}"
        )
    elif options.check:
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
