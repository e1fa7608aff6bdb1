"""The simulated mesh: processes, the database and runner slots as queues that runs pass through.

A run is queued by its spawn, takes a slot of a runner, does its turns and is finalized. Each step
asks a process of each service for the processor time that it costs there, and then the database,
which is a number of cores. A step waits where all are busy. The time of the model is spent without
a processor. What is not simulated: the network, disks, and memory.

Runners wait for runs at every process of `session`. In each, the first in line looks when a run is
queued and once a second, and the next one looks when it has taken the run.
"""

import random
from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import simpy

from tests.simulation.costs import POSTGRES, Costs

Steps = Generator[simpy.Event, Any, None]

_SPAWN_SHARE = 0.4
"""The part of the cost of a run that its spawn has; the rest follows when a runner has it."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """So many processes of each service, cores of the database, and slots of runners."""

    replicas: Mapping[str, int]
    database_cores: int
    slots_each: int

    @property
    def slots(self) -> int:
        return self.replicas["runner"] * self.slots_each


@dataclass(frozen=True, slots=True)
class Load:
    """The sessions of the busiest hour: `peak` times the daily mean.

    Tenants differ by Zipf's law. A run has on average `turns` turns with a tool call, and the model
    takes `model_seconds` for each of its answers, exponentially distributed.
    """

    tenants: int
    sessions_a_day: float
    peak: float
    turns: float
    model_seconds: float
    with_files: float

    @property
    def rate(self) -> float:
        """Sessions a second in the busiest hour."""
        return self.sessions_a_day / 86_400 * self.peak


@dataclass(slots=True)
class Result:
    """The observations: the part of the time that each station was busy, and waits in seconds."""

    busy: dict[str, float]
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: int = 0

    def wait_p99(self, station: str) -> float:
        """Return how long a step waits at the station, or 0 if none ever came there."""
        waits = sorted(self.waits[station])
        return waits[int(len(waits) * 0.99)] if waits else 0.0


class SimulatedMesh:
    """One simulation. `run` can be called once."""

    def __init__(self, deployment: Deployment, load: Load, costs: Costs, *, seed: int) -> None:
        self._deployment, self._load, self._costs = deployment, load, costs
        self._random = random.Random(seed)
        self._world = simpy.Environment()
        self._stations = {
            name: simpy.Resource(self._world, count) for name, count in deployment.replicas.items()
        }
        self._stations[POSTGRES] = simpy.Resource(self._world, deployment.database_cores)
        self._slots = simpy.Resource(self._world, deployment.slots)
        self._used: dict[str, float] = defaultdict(float)
        self._slot_seconds = 0.0
        self._result = Result({})

    def run(self, seconds: float) -> Result:
        """Simulate so many seconds, and return what was seen."""
        self._world.process(self._arrivals())
        for _ in range(self._deployment.replicas["session"]):
            self._world.process(self._polls())
        self._world.run(until=seconds)
        for name, station in self._stations.items():
            self._result.busy[name] = self._used[name] / (station.capacity * seconds)
        self._result.busy["slots"] = self._slot_seconds / (self._slots.capacity * seconds)
        return self._result

    def _arrivals(self) -> Steps:
        while True:
            yield self._world.timeout(self._random.expovariate(self._load.rate))
            self._world.process(self._session())

    def _session(self) -> Steps:
        costs = self._costs
        files = costs.files if self._random.random() < self._load.with_files else {}
        spawn = {
            name: _SPAWN_SHARE * seconds + files.get(name, 0.0)
            for name, seconds in costs.run.items()
            if name != "runner"
        }
        yield from self._step(spawn)
        asked = self._world.now
        with self._slots.request() as slot:
            yield slot
            self._result.waits["slots"].append(self._world.now - asked)
            held = self._world.now
            for _ in range(self._deployment.replicas["session"]):
                self._world.process(self._step({POSTGRES: self._claim_seconds()}))
            yield from self._step({POSTGRES: self._claim_seconds()})
            for _ in range(round(self._random.expovariate(1 / self._load.turns))):
                yield self._world.timeout(self._random.expovariate(1 / self._load.model_seconds))
                yield from self._step(costs.turn)
            yield self._world.timeout(self._random.expovariate(1 / self._load.model_seconds))
            rest = {
                name: seconds * (1.0 if name == "runner" else 1 - _SPAWN_SHARE)
                for name, seconds in costs.run.items()
            }
            yield from self._step(rest)
            self._slot_seconds += self._world.now - held
        self._result.ended += 1

    def _polls(self) -> Steps:
        while True:
            yield self._world.timeout(_POLL_SECONDS)
            yield from self._step({POSTGRES: self._claim_seconds()})

    def _claim_seconds(self) -> float:
        """Return what tenants add to a claim; the claim of a mesh with one tenant is in the run."""
        fewest = min(self._costs.claims)
        most = max(self._costs.claims)
        more = self._costs.claims[most] - self._costs.claims[fewest]
        return max(0.0, more * (self._load.tenants - fewest) / (most - fewest))

    def _step(self, seconds: Mapping[str, float]) -> Steps:
        """Visit each station once, one after the other."""
        for name, needed in seconds.items():
            if needed <= 0 or name not in self._stations:
                continue
            asked = self._world.now
            with self._stations[name].request() as place:
                yield place
                self._result.waits[name].append(self._world.now - asked)
                took = self._random.expovariate(1 / needed)
                yield self._world.timeout(took)
                self._used[name] += took
