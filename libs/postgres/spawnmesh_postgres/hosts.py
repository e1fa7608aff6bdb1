"""The order in which the hosts of a DSN are tried."""

from typing import Any

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.server_probe import Host

_DEFAULT_PORT = "5432"


class Hosts:
    """The hosts of a DSN, the host of the newest connection first.

    libpq tries the hosts in the order of the DSN. If the first of them has vanished, each new
    connection would wait for its timeout, and a pool would take minutes to fill.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = with_timeouts(dsn)
        parts = conninfo_to_dict(dsn)
        names = str(parts.get("host", "")).split(",")
        ports = str(parts.get("port", "")).split(",")
        if len(ports) == 1:
            ports *= len(names)
        addresses = str(parts.get("hostaddr") or parts.get("host", "")).split(",")
        named = [host for host in zip(addresses, ports, strict=False) if host[0]]
        self.addresses: list[Host] = [(name, port or _DEFAULT_PORT) for name, port in named]
        """The addresses of the hosts; empty if the DSN names none."""
        # With `hostaddr`, the addresses would have to move along: such a DSN keeps its order.
        movable = len(names) > 1 and len(ports) == len(names) and "hostaddr" not in parts
        self._hosts: list[Host] = list(zip(names, ports, strict=True)) if movable else []

    def dsn(self) -> str:
        """Return the DSN for the next connection."""
        if not self._hosts:
            return self._dsn
        names, ports = zip(*self._hosts, strict=True)
        return make_conninfo(self._dsn, host=",".join(names), port=",".join(ports))

    def prefer(self, connection: AsyncConnection[Any]) -> None:
        """Try the host of this connection first from now on."""
        made = connection.info.host, str(connection.info.port)
        for host in self._hosts:
            if made == (host[0], host[1] or made[1]):
                self._hosts.remove(host)
                self._hosts.insert(0, host)
                return

    def address_of(self, connection: AsyncConnection[Any]) -> Host:
        """Return the address of the connection's server as the DSN has it."""
        port = str(connection.info.port)
        resolved = connection.info.hostaddr, port
        return resolved if resolved in self.addresses else (connection.info.host, port)

    def avoid(self, silent: Host) -> None:
        """Try this host last from now on."""
        self._hosts.sort(key=lambda host: (host[0], host[1] or _DEFAULT_PORT) == silent)
