"""The zip and the image of the contracts are complete, and give the descriptors that the mesh serves."""

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from protovalidate import ViolationPb

from tests.support.docs.code_blocks import typed

ROOT = Path(__file__).resolve().parents[3]
CONTRACTS = sorted(str(file.relative_to(ROOT / "protos")) for file in (ROOT / "protos").rglob("*.proto"))
RULES = "buf/validate/validate.proto"
# Options of unknown types would be compared as bytes, whose order may differ.
for name in ("buf.validate.validate_pb2", "spawnmesh.policy.v1.policy_pb2"):
    importlib.import_module(name)


def served(name: str) -> FileDescriptorProto:
    """Return the descriptor of a contract in the stubs, which the mesh serves."""
    stub = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return FileDescriptorProto.FromString(stub.DESCRIPTOR.serialized_pb)


def descriptors(image: Path) -> dict[str, FileDescriptorProto]:
    for name in CONTRACTS:
        served(name)  # Options are equal once the stubs that define them are imported.
    return {file.name: file for file in FileDescriptorSet.FromString(image.read_bytes()).file}


def described(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return a descriptor without what a stub leaves out: comments, and the names in JSON, which
    follow from the names of the fields.
    """
    file.ClearField("source_code_info")
    for field in (*file.extension, *chain.from_iterable(map(fields, file.message_type))):
        field.ClearField("json_name")
    return file


def fields(message: DescriptorProto) -> Iterator[FieldDescriptorProto]:
    yield from message.field
    for nested in message.nested_type:
        yield from fields(nested)


def compiled(folder: Path) -> dict[str, FileDescriptorProto]:
    """Compile every `.proto` file of a folder with this folder alone."""
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "-oimage.binpb", *names]
    subprocess.run(command, cwd=folder, check=True)
    return descriptors(folder / "image.binpb")


def test_zip_compiles_to_the_descriptors_that_the_mesh_serves(unzipped: Path) -> None:
    files = compiled(unzipped)
    assert {name for name in files if name.startswith("spawnmesh/")} == set(CONTRACTS)
    assert [name for name in CONTRACTS if described(files[name]) != served(name)] == []


def test_commands_of_the_readme_compile_the_zip(bundle: Path, tmp_path: Path) -> None:
    """The blocks are those of ```sh in protos/README.md that need nothing but Python and buf."""
    shutil.copy(bundle / "spawnmesh-protos.zip", tmp_path)
    script = "".join(typed("protos/README.md"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env={"PATH": path}, check=True)
    assert (tmp_path / "gen/spawnmesh/session/v1/session_service_pb2_grpc.py").exists()


def test_zip_has_the_rules_with_all_their_options(unzipped: Path) -> None:
    rules = FileDescriptorProto.FromString(ViolationPb.desc().file.proto.to_binary())
    assert compiled(unzipped)[RULES] == rules
    assert "(buf.validate.predefined)" in (unzipped / RULES).read_text()


def test_zip_has_the_details_of_errors(unzipped: Path) -> None:
    details = compiled(unzipped)["google/rpc/error_details.proto"]
    assert {"ErrorInfo", "BadRequest", "RetryInfo"} <= {message.name for message in details.message_type}


def test_zip_can_be_unpacked_beside_other_files(bundle: Path) -> None:
    with zipfile.ZipFile(bundle / "spawnmesh-protos.zip") as zipped:
        names = zipped.namelist()
    assert {name.partition("/")[0] for name in names} == {"spawnmesh", "buf", "google"}
    assert {name for name in names if not name.endswith(".proto")} == {
        "spawnmesh/README.md",
        "spawnmesh/LICENSE",
    }


def test_zip_has_no_time_and_no_order_of_its_own(bundle: Path) -> None:
    """A zip of the same files has the same bytes, and anyone can read what is unpacked."""
    with zipfile.ZipFile(bundle / "spawnmesh-protos.zip") as zipped:
        entries = zipped.infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.external_attr >> 16 for entry in entries} == {0o644}
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)


def test_image_has_every_file_after_its_imports_and_with_its_comments(bundle: Path) -> None:
    files = descriptors(bundle / "spawnmesh.binpb")
    seen: set[str] = set()
    for name, file in files.items():
        assert set(file.dependency) <= seen, f"{name} comes before one of its imports"
        seen.add(name)
    texts = [
        place.leading_comments
        for place in files["spawnmesh/errors/v1/reason.proto"].source_code_info.location
    ]
    assert any("The reasons with which a call can be refused." in text for text in texts)
    assert [name for name in CONTRACTS if described(files[name]) != served(name)] == []


def test_buf_reads_the_zip(bundle: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.binpb"
    subprocess.run(["buf", "build", bundle / "spawnmesh-protos.zip", "-o", image], check=True)
    assert set(CONTRACTS) < set(descriptors(image))


@pytest.mark.parametrize("folder", [".", "protos"])
def test_buf_reads_a_checkout(checkout: Path, folder: str) -> None:
    subprocess.run(
        ["buf", "build", folder, "-o", "image.binpb", "--as-file-descriptor-set"], cwd=checkout, check=True
    )
    files = descriptors(checkout / "image.binpb")
    assert [name for name in CONTRACTS if described(files[name]) != served(name)] == []
