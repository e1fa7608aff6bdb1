"""Ports that are handed out are free, and a busy one is named."""

import socket

import pytest
from spawnmesh_devstack.failures import PortBusy, StackError
from spawnmesh_devstack.ports import LOOPBACK, PAIR_DISTANCE, free_port_pairs, free_ports, require_free


@pytest.fixture
def busy_port():
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


def test_free_ports_are_different_and_can_be_bound():
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert max(ports) < 45_000
    for port in ports:
        require_free(port, "nothing")


def test_both_ports_of_a_pair_can_be_bound():
    for port in free_port_pairs(5):
        require_free(port, "http")
        require_free(port + PAIR_DISTANCE, "grpc")


def test_a_port_whose_partner_is_taken_is_no_pair():
    low = 12_000
    with socket.create_server((LOOPBACK, low + PAIR_DISTANCE)):
        assert free_ports(1, below=low + 1) == [low]
        with pytest.raises(StackError, match="only 0 of 1"):
            free_port_pairs(1, below=low + 1)


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
