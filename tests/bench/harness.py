"""The tools of every area: fixed data, a warm-up, and floors that are measured in turn with the
work that they are for.

Machines differ and are noisy, so ratios count: a piece of work against the least that it could
cost, at the same pace. An area is a module of this package with `async def run(bench: Bench) ->
None`. It asks for the mesh, compares, and records metrics whose names begin with the name of the
area.
"""

import hashlib
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from spawnmesh_devstack.stack import Stack, open_stack

AS_DEPLOYED = {"OTEL_BSP_SCHEDULE_DELAY": "5000"}
"""Send spans at the default interval of the SDK. A mesh on a developer's machine sends them ten
times a second.
"""

Work = Callable[[], Awaitable[float | None]]
"""One turn of a piece of work. It returns the seconds that count, or None to count all the time
that it took.
"""


@dataclass(frozen=True, slots=True)
class Samples:
    """The seconds of each turn, in order."""

    seconds: Sequence[float]

    def percentile(self, percent: int) -> float:
        """Return the percentile, interpolated between the two nearest samples."""
        if len(self.seconds) == 1:
            return self.seconds[0]
        return quantiles(self.seconds, n=100, method="inclusive")[percent - 1]

    @property
    def p50(self) -> float:
        return self.percentile(50)

    @property
    def p95(self) -> float:
        return self.percentile(95)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the output.

    `ratio` is the value divided by the floor. `bound` is the highest allowed ratio or, without a
    floor, the highest allowed value.
    """

    name: str
    value: float
    unit: str
    floor: float | None
    ratio: float | None
    samples: int
    p95: float | None = None
    bound: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the cost is above its bound."""
        measured = self.value if self.ratio is None else self.ratio
        return self.bound is not None and measured > self.bound

    def line(self) -> str:
        """Return the metric as a line of JSON."""
        told = {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name in ("floor", "ratio")
        }
        return json.dumps(
            {name: round(value, 6) if isinstance(value, float) else value for name, value in told.items()}
        )


@dataclass(slots=True)
class Bench:
    """The context of an area. The mesh starts when the first area asks for it, and serves all
    areas.
    """

    data_dir: Path
    report: Callable[[str], None]
    exits: AsyncExitStack
    metrics: list[Metric] = field(default_factory=list)
    _stack: Stack | None = None
    _blocks: "itertools.count[int]" = field(default_factory=itertools.count)

    async def stack(self) -> Stack:
        """Return a mesh of real processes with the scripted model, which answers at once."""
        if self._stack is None:
            self._stack = await self.exits.enter_async_context(
                open_stack(self.data_dir, self.report, environment=AS_DEPLOYED, model_pause_seconds=0.0)
            )
        return self._stack

    def fresh_bytes(self, size: int) -> bytes:
        """Return new bytes that cannot be compressed: in every run the same ones, in the same
        order.
        """
        return hashlib.shake_128(f"block {next(self._blocks)}".encode()).digest(size)

    async def compare(
        self, works: Mapping[str, Work], *, rounds: int, warm_up: int = 5
    ) -> dict[str, Samples]:
        """Do all works in turn, `rounds` times, after `warm_up` rounds that do not count.

        Each round begins with another of the works, so that the disk is not always idle before the
        same one.
        """
        seconds: dict[str, list[float]] = {name: [] for name in works}
        names = list(works)
        for number in range(-warm_up, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                began = perf_counter()
                told = await works[name]()
                took = perf_counter() - began
                if number >= 0:
                    seconds[name].append(took if told is None else told)
        return {name: Samples(taken) for name, taken in seconds.items()}

    def latency(
        self, name: str, samples: Samples, floor: Samples | float | None = None, bound: float | None = None
    ) -> None:
        """Record a p50 in milliseconds, with its ratio to the p50 of the floor or to so many
        seconds.
        """
        least = floor.p50 if isinstance(floor, Samples) else floor
        self.record(
            Metric(
                name,
                samples.p50 * 1e3,
                "ms",
                None if least is None else least * 1e3,
                None if least is None else samples.p50 / least,
                len(samples.seconds),
                samples.p95 * 1e3,
                bound,
            )
        )

    def record(self, metric: Metric) -> None:
        """Keep the metric for the output."""
        self.metrics.append(metric)
