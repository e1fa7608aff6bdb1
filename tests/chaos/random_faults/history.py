"""The history of every call of the load: when it began and ended, and what came."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status


class Outcome(StrEnum):
    """The outcome of a call, as its caller knows it."""

    OK = "ok"
    REFUSED = "refused"
    """The call had no effect."""
    UNKNOWN = "unknown"
    """The call may have had its effect."""


_UNKNOWN = (
    Status.UNAVAILABLE,
    Status.DEADLINE_EXCEEDED,
    Status.CANCELLED,
    Status.INTERNAL,
    Status.RESOURCE_EXHAUSTED,
)
_ASK_AGAIN = (Reason.SPAWN_IN_PROGRESS, Reason.CONFLICT)
"""Another call with the same effect is under way. To repeat the call gives its answer."""


@dataclass(slots=True)
class Call:
    """A call. `start` and `end` are seconds since the load began; `given` is what was sent, and
    `got` what came back.
    """

    operation: str
    tenant: str
    start: float
    given: dict[str, Any]
    end: float = 0.0
    outcome: Outcome = Outcome.UNKNOWN
    reason: str = ""
    status: str = ""
    message: str = ""
    got: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """True if the call was answered."""
        return self.outcome is Outcome.OK


class History:
    """All calls, in the order of their ends, also as JSON lines in the file."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.calls: list[Call] = []
        self._file = file
        self._zero = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the load began."""
        return time.monotonic() - self._zero

    @contextmanager
    def call(self, operation: str, tenant: str, **given: Any) -> Iterator[Call]:
        """Record the call that the block makes. A MeshError is recorded and suppressed."""
        call = Call(operation, tenant, self.now(), given)
        try:
            yield call
            call.outcome = Outcome.OK
        except MeshError as error:
            unknown = error.status in _UNKNOWN or error.reason in _ASK_AGAIN
            call.outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
            call.reason, call.status = str(error.reason), str(error.status)
            call.message = error.message[:300]
        finally:
            call.end = self.now()
            self.calls.append(call)
            if self._file is not None:
                print(json.dumps(asdict(call)), file=self._file, flush=True)

    def of(self, operation: str) -> list[Call]:
        """Return the calls of one operation."""
        return [call for call in self.calls if call.operation == operation]


def read_history(file: Path) -> History:
    """Read a history that was written before."""
    history = History()
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        fields["outcome"] = Outcome(fields["outcome"])
        history.calls.append(Call(**fields))
    return history
