"""The mesh that is up is found by its files while it holds their lock."""

from pathlib import Path

from spawnmesh_devstack.mesh_file import is_used, sole_use, write_mesh_file
from spawnmesh_devstack.running_mesh import open_running_mesh


def write(data: Path) -> None:
    write_mesh_file(
        data,
        targets={"session": "127.0.0.1:1"},
        gateway=None,
        console="http://127.0.0.1:2",
        keys=data / "keys",
        traces=data / "traces.otlp",
        otlp="http://127.0.0.1:3",
        pids={},
    )


async def test_a_mesh_that_is_up_is_found(tmp_path: Path) -> None:
    with sole_use(tmp_path) as data:
        write(data)
        assert is_used(tmp_path)
        async with open_running_mesh(tmp_path) as mesh:
            assert mesh is not None
            assert mesh.targets == {"session": "127.0.0.1:1"}
            assert mesh.console == "http://127.0.0.1:2"
            assert mesh.keys == data / "keys"
            assert mesh.otlp_endpoint == "http://127.0.0.1:3"


async def test_a_mesh_that_starts_is_not_found(tmp_path: Path) -> None:
    with sole_use(tmp_path):
        async with open_running_mesh(tmp_path) as mesh:
            assert mesh is None


async def test_the_files_of_a_killed_mesh_are_no_mesh(tmp_path: Path) -> None:
    async with open_running_mesh(tmp_path / "missing") as mesh:
        assert mesh is None
    with sole_use(tmp_path):
        pass
    write(tmp_path)
    assert not is_used(tmp_path)
    async with open_running_mesh(tmp_path) as mesh:
        assert mesh is None
    with sole_use(tmp_path):  # To look at the lock does not keep it.
        pass
