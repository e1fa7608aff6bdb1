"""The names that the package exports, and the versions that it needs."""

import re
import tomllib
from pathlib import Path

import pytest
import spawnmesh_client

PROTOS = Path(__file__).resolve().parents[3] / "libs" / "protos"


def test_what_the_package_exports_is_there_and_nothing_else() -> None:
    for name in spawnmesh_client.__all__:
        assert getattr(getattr(spawnmesh_client, name), "__name__", "LiveEvent") == name  # It is a union.
    with pytest.raises(AttributeError, match="no attribute 'disconnect'"):
        _ = spawnmesh_client.disconnect


def test_stubs_ask_pip_for_the_versions_below_which_they_cannot_be_imported() -> None:
    files = [*PROTOS.glob("spawnmesh/**/*.py"), *PROTOS.glob("buf/**/*.py")]
    stubs = "\n".join(file.read_text() for file in files)
    versions = {
        "protobuf": set(re.findall(r"^# Protobuf Python Version: (.+)$", stubs, re.MULTILINE)),
        "grpcio": set(re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'$", stubs, re.MULTILINE)),
    }
    declared = tomllib.loads((PROTOS / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, compiled in versions.items():
        (version,) = compiled
        assert f"{name}>={version}" in declared
