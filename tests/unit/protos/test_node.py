"""Node reads the contracts: by @grpc/proto-loader at run time, and as code of protoc-gen-es."""

import base64
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

from tests.support.npm import install_packages

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = Path(__file__).with_name("node")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the scripts and the packages that they import. Skips where there are none."""
    folder = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(PACKAGES, folder)
    install_packages(folder)
    yield folder
    shutil.rmtree(folder)  # 50 MB.


def printed(script: str, folder: Path, *arguments: Path) -> dict[str, Any]:
    """Run a script and return the JSON that it prints."""
    shown = subprocess.run(
        ["node", script, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE
    ).stdout
    found: dict[str, Any] = json.loads(shown)
    return found


def services_of_the_contracts() -> list[str]:
    names = [str(file.relative_to(ROOT / "protos")) for file in (ROOT / "protos").rglob("*_service.proto")]
    for name in names:
        importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    files = [Default().FindFileByName(name) for name in names]
    return sorted(service.full_name for file in files for service in file.services_by_name.values())


def assert_read(found: dict[str, Any]) -> None:
    """The services, a policy and a request are those of the mesh."""
    services = [name for name in found["services"] if name != "google.longrunning.Operations"]
    assert sorted(services) == services_of_the_contracts()
    assert found["callers"] == ["CALLER_CLIENT", "CALLER_RUN"]
    described = Default().FindMessageTypeByName("spawnmesh.session.v1.SpawnSessionRequest")
    request: Any = GetMessageClass(described).FromString(base64.b64decode(found["request"]))
    assert (request.request_id, request.task, request.run_timeout.seconds) == ("r-1", "Say hello.", 60)


def test_proto_loader_reads_the_zip(packages: Path, unzipped: Path) -> None:
    assert_read(printed("proto_loader.mjs", packages, unzipped))


def test_protoc_gen_es_reads_the_zip(packages: Path, unzipped: Path) -> None:
    names = sorted(str(file.relative_to(unzipped)) for file in unzipped.rglob("*.proto"))
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I."),
        f"--plugin={packages / 'node_modules/.bin/protoc-gen-es'}",
        f"--es_out={packages / 'gen'}",
        "--es_opt=target=js,import_extension=js",
    ]
    (packages / "gen").mkdir()
    subprocess.run([*command, *names], cwd=unzipped, check=True)
    found = printed("generated.mjs", packages)
    assert_read(found)
    assert found["maxBytes"] == 1_048_576
