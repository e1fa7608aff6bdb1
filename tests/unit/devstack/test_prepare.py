"""Ports that are given out once, and the files by which a mesh is found."""

import json
import socket
import stat
from pathlib import Path

import pytest
from spawnmesh_devstack.console import SIGN_IN_NAME, console_variables, running_console, sign_in_link
from spawnmesh_devstack.failures import PortBusy, StackError
from spawnmesh_devstack.mesh_file import sole_use, write_mesh_file, write_token_file
from spawnmesh_devstack.ports import PAIR_DISTANCE, free_port_pairs, free_ports
from spawnmesh_devstack.prepare import choose_ports, write_router_config


def test_every_service_gets_a_port_of_its_own_and_asked_ones_are_kept():
    (asked,) = free_ports(1)
    ports = choose_ports({"session": asked})

    assert ports["session"] == asked
    assert {"attachment-blob", "transcript", "model-router", "hook", "otlp", "scripted-model"} < set(ports)
    assert len(set(ports.values())) == len(ports)


def test_port_that_is_taken_or_for_nothing_known_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortBusy):
        choose_ports({"hook": taken.getsockname()[1]})
    with pytest.raises(StackError, match="nothing is called hooks"):
        choose_ports({"hooks": 12345})


def test_port_asked_for_s3_is_taken_with_the_one_of_its_grpc():
    (port,) = free_port_pairs(1)

    with (
        socket.create_server(("127.0.0.1", port + PAIR_DISTANCE)),
        pytest.raises(PortBusy, match="s3's gRPC"),
    ):
        choose_ports({"s3": port})


def test_mesh_file_is_for_its_owner_and_gone_afterwards(tmp_path):
    with sole_use(tmp_path / "data") as data:
        write_mesh_file(
            data,
            targets={"session": "127.0.0.1:1"},
            gateway=None,
            console="http://127.0.0.1:2",
            keys=data / "keys",
            traces=data / "t",
            otlp="http://127.0.0.1:3",
            pids={"session": 7},
        )
        write_token_file(data, "a.token")
        file, token, sign_in = data / "mesh.json", data / "client.token", data / SIGN_IN_NAME
        link = sign_in_link(running_console(data), data, "a.token")
        assert link.startswith("http://127.0.0.1:2/sign-in?code=")
        assert link.partition("=")[2] not in sign_in.read_text(), "the code is in the link alone"
        assert json.loads(file.read_text())["targets"] == {"session": "127.0.0.1:1"}
        assert token.read_text() == "a.token"
        assert {stat.S_IMODE(one.stat().st_mode) for one in (file, token, sign_in)} == {0o600}
    assert sorted(one.name for one in data.iterdir()) == [".lock"]


def test_second_mesh_on_the_same_data_is_refused_and_the_first_stays_findable(tmp_path):
    with sole_use(tmp_path) as data:
        write_mesh_file(
            data, targets={}, gateway=None, console=None, keys=data, traces=data, otlp="", pids={}
        )
        with pytest.raises(StackError, match="running"), sole_use(tmp_path):
            pass
        assert (data / "mesh.json").exists()
    with sole_use(tmp_path):
        pass


def test_console_is_of_a_running_mesh(tmp_path):
    with pytest.raises(StackError, match="no mesh with a console"):
        running_console(tmp_path)
    with sole_use(tmp_path) as data:
        write_mesh_file(
            data, targets={}, gateway=None, console=None, keys=data, traces=data, otlp="", pids={}
        )
        with pytest.raises(StackError, match="no mesh with a console"):
            running_console(tmp_path)


def test_people_stay_signed_in_when_the_console_starts_again(tmp_path):
    (tmp_path / "keys").mkdir()
    first = console_variables(tmp_path)
    key = Path(first["COOKIE_KEY_FILE"])
    written = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert console_variables(tmp_path) == first
    assert key.read_bytes() == written


def test_file_of_a_mesh_that_was_killed_is_not_believed(tmp_path):
    for name in ("mesh.json", "client.token"):
        (tmp_path / name).write_text("{}")

    with sole_use(tmp_path):
        assert sorted(one.name for one in tmp_path.iterdir()) == [".lock"]


def test_router_configuration_is_for_its_owner(tmp_path):
    file = write_router_config(tmp_path, {"primary": "a/b"})

    assert json.loads(file.read_text()) == {"primary": "a/b"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
