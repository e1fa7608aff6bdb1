"""The metrics of the processes of a mesh, and the file with which Prometheus reads them."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import RUNNER, SERVICES, Member, prefix_of
from spawnmesh_devstack.ports import LOOPBACK, require_free

NAMESPACE = "spawnmesh"
"""The label that tells a release from others: in a cluster, it is the namespace."""
_LAST_PORT = 65_535


def ports_from(first: int) -> Iterator[int]:
    """Yield the port and those behind it. Raises PortBusy for one in use."""
    for port in count(first):
        if port > _LAST_PORT:
            raise StackError(f"there are too few ports from {first} on for the metrics of all processes")
        require_free(port, "the metrics of a process")
        yield port


class Scraping:
    """A port for the metrics of each process, and a configuration of Prometheus that reads them.

    Its labels are those that the chart adds in a cluster, so that dashboards and alerts have data.
    """

    def __init__(self, config_file: Path, ports: Iterator[int], interval_seconds: int = 5) -> None:
        self.config_file = config_file
        self.addresses: dict[str, str] = {}
        """The `host:port` with the metrics of each process, by its name."""
        self._ports = ports
        self._interval_seconds = interval_seconds

    def variables(self, member: Member) -> dict[str, str]:
        """Return the variables by which the process offers its metrics; none if it has none.

        A process that starts again keeps its port.
        """
        service = _component(member.name).removesuffix("-worker")
        if service not in (*SERVICES, RUNNER):
            return {}
        if member.name not in self.addresses:
            self.addresses[member.name] = f"{LOOPBACK}:{next(self._ports)}"
            self._write()
        return {f"{prefix_of(service)}METRICS_LISTEN": self.addresses[member.name]}

    def _write(self) -> None:
        interval = f"{self._interval_seconds}s"
        groups = [
            {
                "targets": [address],
                "labels": {"namespace": NAMESPACE, "component": _component(name), "pod": name},
            }
            for name, address in self.addresses.items()
        ]
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "scrape_configs": [{"job_name": "metrics", "static_configs": groups}],
        }
        # JSON is YAML.
        self.config_file.write_text(json.dumps(config, indent=2) + "\n")


def _component(name: str) -> str:
    """Return the workload of a process: `session` of `session-2`."""
    base, _, number = name.rpartition("-")
    return base if number.isdecimal() else name
