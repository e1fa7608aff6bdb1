"""Ports that are handed out are free, and a busy one is named."""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile

import pytest
from spawnmesh_devstack import ports
from spawnmesh_devstack.failures import PortBusy, StackError
from spawnmesh_devstack.ports import LOOPBACK, PAIR_DISTANCE, free_port_pairs, free_ports, require_free


@pytest.fixture
def own_range(monkeypatch, tmp_path):
    """Forty free ports with free partners that no other test picks, with reservations of their own."""
    monkeypatch.setattr(ports, "_reserved", set())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ports._reservations.cache_clear()
    yield next(
        found
        for found in some_ranges()
        if not any(is_listened_on(port) for port in (*found, *partners(found)))
    )
    ports._reservations.cache_clear()


def some_ranges():
    while True:
        start = random.SystemRandom().randrange(1_100, 1_900)
        yield range(start, start + 40)


def partners(found):
    return range(found.start + PAIR_DISTANCE, found.stop + PAIR_DISTANCE)


def is_listened_on(port):
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


@pytest.fixture
def busy_port():
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


def test_free_ports_are_different_and_can_be_bound():
    found = free_ports(20)

    assert len(set(found)) == 20
    assert max(found) < 45_000
    for port in found:
        require_free(port, "nothing")


def test_both_ports_of_a_pair_can_be_bound():
    for port in free_port_pairs(5):
        require_free(port, "http")
        require_free(port + PAIR_DISTANCE, "grpc")


def test_a_port_is_picked_once_whether_or_not_anybody_listens_on_it_yet(own_range):
    assert {*free_ports(30, own_range), *free_ports(len(own_range) - 30, own_range)} == set(own_range)
    with pytest.raises(
        StackError, match=f"only 0 of 1 free ports found between {own_range[0]} and {own_range[-1]}"
    ):
        free_ports(1, own_range)


def test_ports_that_another_process_picked_are_not_picked_until_it_ends(own_range):
    picking = f"from spawnmesh_devstack.ports import free_ports; print(free_ports(39, {own_range!r}), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", picking], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        theirs = set(json.loads(other.stdout.readline()))
        assert {*theirs, *free_ports(1, own_range)} == set(own_range)
        with pytest.raises(StackError, match="only 0 of 1"):
            free_ports(1, own_range)
    assert set(free_ports(39, own_range)) == theirs


def test_where_ports_cannot_be_reserved_it_is_said_why_and_what_to_do(tmp_path):
    (tmp_path / f"spawnmesh-ports-{os.getuid()}.lock").symlink_to(tmp_path / "elsewhere")
    picking = "from spawnmesh_devstack.ports import free_ports; free_ports(1)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    picked = subprocess.run(
        [sys.executable, "-c", picking], env=environment, capture_output=True, text=True, check=False
    )

    assert "StackError: ports cannot be reserved in" in picked.stderr
    assert "set TMPDIR" in picked.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_a_port_that_was_asked_for_is_not_picked_for_anything_else(own_range):
    asked = require_free(own_range[7], "the session service")

    assert {asked, *free_ports(39, own_range)} == set(own_range)


def test_the_partner_of_a_pair_is_not_picked_for_anything_else(own_range):
    pair = free_port_pairs(1, own_range)[0] + PAIR_DISTANCE

    assert {pair, *free_ports(39, partners(own_range))} == set(partners(own_range))


def test_a_port_whose_partner_is_taken_is_no_pair(own_range):
    alone = own_range[:1]
    with (
        socket.create_server((LOOPBACK, alone[0] + PAIR_DISTANCE)),
        pytest.raises(StackError, match="only 0 of 1"),
    ):
        free_port_pairs(1, alone)


def test_a_busy_port_is_named_with_its_purpose(busy_port):
    with pytest.raises(PortBusy, match=f"port {busy_port} for the session service is in use") as refused:
        require_free(busy_port, "the session service")
    assert (refused.value.port, refused.value.purpose) == (busy_port, "the session service")


def test_a_port_is_free_again_although_a_connection_lingers():
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)):
            listener.accept()[0].close()  # the side that closes first keeps TIME_WAIT

    assert require_free(port, "a restart") == port
