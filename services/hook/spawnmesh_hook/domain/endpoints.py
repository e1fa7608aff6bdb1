"""Decide which endpoints of plugins and webhooks the mesh connects to.

A tenant chooses their addresses. They must not lead into the operator's network.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_ENDPOINT = re.compile(
    r"(?P<scheme>grpc|https?)://(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,252}))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>/[!-~]*)?"
)
_PORTS = {"https": 443, "http": 80}
# Metadata servers of clouds that are not link-local. They hand out a machine's credentials.
_METADATA = frozenset(
    map(
        ip_address,
        ("168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    )
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a plugin or of a webhook.

    `host` is a lower-case name, or an IP address without brackets. `path` is the path of a webhook,
    and empty for gRPC. `is_plain` stands for HTTP without TLS, which only loopback may have.
    """

    host: str
    port: int
    path: str = ""
    is_plain: bool = False

    @property
    def is_webhook(self) -> bool:
        return bool(self.path)


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """The endpoints that the operator allows.

    - Without host patterns and networks, every public address is allowed. With them, only the
      listed hosts and addresses are.
    - An address in `networks` is allowed, even if it is private or link-local.
    - A host pattern allows a name. The name still has to lead to public addresses, unless
      `allow_private` is set.
    - HTTP without TLS is for loopback, and only if `allow_plain` is set.
    """

    host_patterns: tuple[str, ...]
    networks: tuple[Network, ...]
    allow_private: bool
    allow_plain: bool = False


def parse_endpoint(text: str) -> Endpoint:
    """Parse the endpoint of a plugin: `grpc://host:port` or `https://host[:port][/path]`.

    Raises ValueError with a text that completes "the endpoint ...".
    """
    found = _ENDPOINT.fullmatch(text)
    scheme = found["scheme"] if found else ""
    if found is None or scheme == "http" or (scheme == "grpc" and (found["path"] or not found["port"])):
        raise ValueError("must be grpc://host:port or https://host[:port]/path")
    return _endpoint_of(found)


def parse_webhook_url(text: str) -> Endpoint:
    """Parse the address of a webhook: `https://host[:port][/path]`, or `http://` for loopback.

    Raises ValueError with a text that completes "the address ...".
    """
    found = _ENDPOINT.fullmatch(text)
    if found is None or found["scheme"] == "grpc":
        raise ValueError("must be https://host[:port]/path")
    return _endpoint_of(found)


def _endpoint_of(found: re.Match[str]) -> Endpoint:
    scheme = found["scheme"]
    if "#" in (found["path"] or ""):
        raise ValueError("must have no fragment")
    port = int(found["port"] or _PORTS[scheme])
    if not 0 < port < 65536:
        raise ValueError("must have a port between 1 and 65535")
    path = "" if scheme == "grpc" else found["path"] or "/"
    is_plain = scheme == "http"
    if found["six"] is not None:
        return Endpoint(str(IPv6Address(found["six"])), port, path, is_plain)
    return Endpoint(found["host"].lower().rstrip("."), port, path, is_plain)


def parse_rules(
    allowed_hosts: Sequence[str], *, allow_private: bool, allow_plain: bool = False
) -> EndpointRules:
    """Parse the operator's list of networks (`10.1.0.0/16`) and host patterns (`*.example.com`)."""
    patterns: list[str] = []
    networks: list[Network] = []
    for entry in allowed_hosts:
        try:
            networks.append(ip_network(entry))
        except ValueError:
            patterns.append(entry.lower())
    return EndpointRules(tuple(patterns), tuple(networks), allow_private, allow_plain)


def literal_address(host: str) -> Address | None:
    """Return the IP address if the host is one, or None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def refusal(rules: EndpointRules, host: str, addresses: Sequence[Address]) -> str | None:
    """Return why the mesh does not connect to the host, or None if all its addresses are allowed.

    If the name has no addresses at present, only the name is checked.
    """
    listed = any(fnmatchcase(host, pattern) for pattern in rules.host_patterns)
    named = listed or not (rules.host_patterns or rules.networks)
    if not addresses and not named:
        return "is not on the operator's list"
    for address in map(_unwrapped, addresses):
        if any(address in network for network in rules.networks):
            continue
        if not named:
            return "is not on the operator's list"
        if not _is_allowed(address, allow_private=rules.allow_private):
            return "leads to an address that the operator does not allow"
    return None


def plain_refusal(rules: EndpointRules, endpoint: Endpoint, addresses: Sequence[Address]) -> str | None:
    """Return why the mesh does not connect to the endpoint without TLS, or None if it may.

    `refusal` decides whether loopback is allowed at all.
    """
    is_loopback = bool(addresses) and all(_unwrapped(address).is_loopback for address in addresses)
    if endpoint.is_plain and not (rules.allow_plain and is_loopback):
        return "must be https"
    return None


def _unwrapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_allowed(address: Address, *, allow_private: bool) -> bool:
    if address.is_loopback:
        return allow_private
    # Most metadata servers are link-local. They are refused unless the operator lists the network.
    if (
        address in _METADATA
        or address.is_unspecified
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
    ):
        return False
    if isinstance(address, IPv6Address):
        if address.sixtofour is not None:
            return False
        if address.is_site_local:  # Deprecated and private, but `ipaddress` calls it global.
            return allow_private
    return allow_private or address.is_global
