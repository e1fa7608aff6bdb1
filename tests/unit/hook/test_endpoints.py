"""Endpoints and the operator's rules."""

from ipaddress import ip_address

import pytest
from spawnmesh_hook.domain.endpoints import Endpoint, parse_endpoint, parse_rules, refusal


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("grpc://plugins.example.com:443", Endpoint("plugins.example.com", 443)),
        ("grpc://Plugins.Example.COM.:443", Endpoint("plugins.example.com", 443)),
        ("grpc://127.0.0.1:1", Endpoint("127.0.0.1", 1)),
        ("grpc://[2001:DB8::1]:65535", Endpoint("2001:db8::1", 65535)),
        ("https://Plugins.Example.com", Endpoint("plugins.example.com", 443, "/")),
        (
            "https://plugins.example.com:8443/hooks?tenant=a",
            Endpoint("plugins.example.com", 8443, "/hooks?tenant=a"),
        ),
        ("https://[2001:DB8::1]/x", Endpoint("2001:db8::1", 443, "/x")),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "grpc://",
        "grpc://host",
        "grpc://host:",
        "grpc://host:0",
        "grpc://host:65536",
        "grpc://:443",
        "grpc://.:443",
        "grpc://user@host:443",
        "grpc://host:443/path",
        "grpc://host:443?a=b",
        "grpc://host:443\n",
        "grpc://ho\x00st:443",
        "grpc://[::1:443",
        "grpc://[fe80::1%25eth0]:443",
        "grpc://[1.2.3.4]:443",
        "grpc://unix:/run/socket:1",
        "https://host:443#fragment",
        "https://user@host/",
        "https://host:0/",
        "https://host/a b",
        "http://host/",
    ],
)
def test_malformed_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_endpoint(text)


PUBLIC = "93.184.215.14"
NEVER = [
    "169.254.169.254",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "ff02::1",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "::1",
    "fd00::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
]


def refused(host: str, *addresses: str, hosts: tuple[str, ...] = (), private: bool = False) -> bool:
    rules = parse_rules(hosts, allow_private=private)
    return refusal(rules, host, [ip_address(address) for address in addresses]) is not None


def test_without_a_list_every_public_address_is_allowed() -> None:
    assert not refused("plugins.example.com", PUBLIC)
    assert not refused("plugins.example.com", "2606:2800:21f:cb07::1")


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_the_operators_permission(address: str) -> None:
    assert refused("plugins.example.com", address)
    assert not refused("plugins.example.com", address, private=True)


@pytest.mark.parametrize("address", NEVER)
def test_special_addresses_are_refused_unless_listed(address: str) -> None:
    assert refused("plugins.example.com", address)
    assert refused("plugins.example.com", address, private=True)
    assert not refused("plugins.example.com", address, hosts=(address,))


def test_listed_address_does_not_excuse_the_next_one() -> None:
    assert refused("plugins.example.com", "10.1.2.3", "10.2.0.1", hosts=("10.1.0.0/16",))
    assert refused("10.1.2.3", "10.1.2.3", PUBLIC, hosts=("10.1.0.0/16",))


def test_one_refused_address_is_enough() -> None:
    assert refused("plugins.example.com", PUBLIC, "10.0.0.1")


def test_with_a_list_only_listed_hosts_are_allowed() -> None:
    hosts = ("*.plugins.example.com", "10.1.0.0/16")
    assert not refused("a.plugins.example.com", PUBLIC, hosts=hosts)
    assert refused("plugins.example.com", PUBLIC, hosts=hosts)
    assert refused(PUBLIC, PUBLIC, hosts=hosts)
    assert not refused("anything", "10.1.2.3", hosts=hosts)
    assert not refused("10.1.2.3", "::ffff:10.1.2.3", hosts=hosts)
    assert refused("anything", "10.2.0.1", hosts=hosts, private=True)


def test_a_listed_name_does_not_make_a_private_address_public() -> None:
    hosts = ("*.plugins.example.com",)
    assert refused("a.plugins.example.com", "10.0.0.1", hosts=hosts)
    assert not refused("a.plugins.example.com", "10.0.0.1", hosts=hosts, private=True)


def test_a_name_without_addresses_is_checked_by_name() -> None:
    assert not refused("later.example.com")
    assert not refused("a.plugins.example.com", hosts=("*.plugins.example.com",))
    assert refused("later.example.com", hosts=("*.plugins.example.com",))
