"""A real Prometheus that reads the metrics of a mesh, and evaluates queries."""

import asyncio
import json
import math
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from spawnmesh_devstack.ports import LOOPBACK, free_ports

from tests.support.waiting import eventually

PROMETHEUS = shutil.which("prometheus")
NO_PROMETHEUS = "there is no prometheus: install Debian's package prometheus (`apt-get install prometheus`)"
_SECONDS = 60.0


@dataclass(frozen=True)
class Prometheus:
    """A running server. `began` is the Unix time of its start."""

    client: httpx2.AsyncClient
    began: float

    async def _get(self, path: str, **parameters: Any) -> Any:
        answer = await self.client.get(f"/api/v1/{path}", params=parameters)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    async def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """Return the series that the query has now."""
        found: list[Mapping[str, Any]] = (await self._get("query", query=expression))["result"]
        return found

    async def values(self, expression: str) -> Sequence[float]:
        """Return every number that the query has had since the start, in steps of a second."""
        data = await self._get("query_range", query=expression, start=self.began, end=time.time(), step="1")
        numbers = (float(value) for series in data["result"] for _, value in series["values"])
        return [number for number in numbers if math.isfinite(number)]

    async def has_exemplars(self, expression: str) -> bool:
        """Return whether the series of the query have had exemplars with a trace."""
        data = await self._get("query_exemplars", query=expression, start=self.began, end=time.time())
        return any(one["labels"].get("trace_id") for series in data for one in series["exemplars"])

    async def rules(self) -> Sequence[Mapping[str, Any]]:
        """Return all rules, each with its health and, if it alerts, its state."""
        groups = (await self._get("rules"))["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def until(self, expression: str) -> None:
        """Return once the query has a result."""
        await eventually(lambda: self.query(expression))

    async def until_read_again(self) -> None:
        """Return once every target was read after the call."""
        since = time.time()

        async def is_read() -> bool:
            ages = await self.query(f"min(timestamp(up)) > {since}")
            return bool(ages)

        await eventually(is_read)


@asynccontextmanager
async def open_prometheus(
    folder: Path, config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]
) -> AsyncIterator[Prometheus]:
    """Start it with the configuration and with groups of rules; yield it once it reads targets."""
    assert PROMETHEUS is not None
    (port,) = free_ports(1)
    rule_file = folder / "rules.yaml"
    rule_file.write_text(json.dumps({"groups": rules}))  # JSON is YAML.
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps({**config, "rule_files": [str(rule_file)]}))
    began = time.time()
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROMETHEUS,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--enable-feature=exemplar-storage",
            stdout=log,
            stderr=log,
        )
        try:
            async with httpx2.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=_SECONDS) as client:
                server = Prometheus(client, began)

                async def is_ready() -> bool:
                    assert process.returncode is None, (folder / "prometheus.log").read_text()
                    try:
                        return (await client.get("/-/ready")).status_code == 200
                    except httpx2.TransportError:
                        return False

                await eventually(is_ready)
                yield server
        finally:
            process.terminate()
            await process.wait()
