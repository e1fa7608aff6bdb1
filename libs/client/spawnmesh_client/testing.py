"""A mesh in memory, for the tests of programs that use the client.

    mesh = FakeMesh()
    mesh.answers("42")
    result = await mesh.run("What is the answer?")
    assert result.text == "42"

It is a `Mesh`, and the code of the client is the same: only the services are replaced. It has
sessions, transcripts, files, agents, approvals, budgets, webhooks, schedules and operations; every
other call is refused with Unimplemented.

- `Session.live` yields the text of each answer in two deltas before its entry.
- Webhooks are sent nothing: `mesh.webhooks.deliveries` has the starts and ends of sessions, the
  ends of runs and the published files, as received.
- Schedules fire nothing by the clock and have no `upcoming_times`: `mesh.schedules.run` spawns
  their sessions. Of a cron line, only the number of its fields is checked.
- Operations look at all entries, and move and recount nothing.

`sync.blocking(FakeMesh())` gives its blocking methods.

Runs are scripted, apart from those of a worker: see `FakeMesh.working`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest
from spawnmesh.session.v1 import approval_pb2
from spawnmesh.session.v1.budget_pb2 import BudgetUsage
from spawnmesh_calls.connection import Connection
from spawnmesh_core.errors import Fact, MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.task_group import first_failure

from spawnmesh_client.attachments import Attachable
from spawnmesh_client.client import Mesh
from spawnmesh_client.contract_rules import require_valid
from spawnmesh_client.fake_approvals import tool_call
from spawnmesh_client.fake_files import read_file, require_distinct
from spawnmesh_client.fake_models import ModelStep
from spawnmesh_client.fake_records import Outcome
from spawnmesh_client.fake_services import FakeServices
from spawnmesh_client.settings import SERVICES
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import number_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_client.worker import Worker

_MESSAGE_BYTES = 16 * 1024 * 1024
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class SpawnedTask:
    """A spawn that the program under test has made."""

    session_id: str
    task: str
    agent_id: str
    label: str
    model: str
    files: dict[str, bytes]


class FakeMesh(Mesh):
    """A mesh whose runs end as the test scripts them, in order, and without a script with "done".

    A run that is queued runs when the program next looks at its session, and an operation when the
    program next gets it or waits for it. With `moves_payloads`, the tenant has large payloads moved
    out of the database, as with its setting `stub_large_tool_payloads`.
    """

    _fake: FakeServices

    def __init__(self, *, moves_payloads: bool = False) -> None:
        services = FakeServices(moves_payloads=moves_payloads)
        peers = {name: TokenPeer(_FakeConnection(name, services), "fake") for name in SERVICES}
        super().__init__(WireMesh(peers, _MESSAGE_BYTES))
        object.__setattr__(self, "_fake", services)

    def answers(self, *answers: str | Callable[[str], str]) -> None:
        """Script the next runs: each succeeds with a text, or with that of a function, which
        gets the task, or the newest message that the run reads.
        """
        for answer in answers:
            self._fake.script.append(Outcome(answer if callable(answer) else _always(answer)))

    def fails(self, reason: str, message: str = "") -> None:
        """Script the next run: it fails, so that `result` raises RunFailed."""
        self._fake.script.append(Outcome(None, str(reason), message))

    def holds(self) -> None:
        """Script the next run: it goes on until `finish`, `interrupt`, `kill` or the end of the
        test.
        """
        self._fake.script.append(Outcome())

    def publishes(self, *files: Attachable) -> None:
        """Script the next run: it publishes these files as one output set, and goes on with the
        next script.

        Raises ValueError without files, OSError for a path that cannot be read, and
        ATTACHMENTS_DUPLICATE_NAME.
        """
        if not files:
            raise ValueError("give the files that the run publishes")
        found = tuple(map(read_file, files))
        require_distinct(found)
        self._fake.script.append(Outcome(files=found))

    def uses(
        self,
        *,
        cost: float | Decimal = 0,
        tokens: int = 0,
        calls: int = 1,
        run_time: timedelta | float = 0,
    ) -> None:
        """Script the next run: its model calls use this much, and it goes on with the next script.

        Every script is one model call of the run. It waits for its budget, as WAITING_BUDGET,
        before a model call if a limit is reached. The tokens are output, and `run_time` is a
        timedelta or in seconds.
        """
        used = BudgetUsage(cost_micros=round(Decimal(str(cost)) * 1_000_000), token_count=tokens)
        used.model_call_count = calls
        used.run_time.FromTimedelta(
            run_time if isinstance(run_time, timedelta) else timedelta(seconds=run_time)
        )
        self._fake.script.append(Outcome(used=used))

    def requests_approval(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        reason: str = "",
        timeout: float = _DAY_SECONDS,
        on_expiry: str = "DENY",
    ) -> None:
        """Script the next run: it waits for a person to approve or deny this call.

        After the decision, and after `timeout` seconds without one, it goes on with the next
        script. With the policy `FAIL`, it fails without one; with `ESCALATE`, the approval waits
        once more for `timeout` seconds. Nothing is called, and edited arguments are not compared
        with a schema.
        """
        subject = approval_pb2.Approval(tool_call=tool_call(tool_name, arguments), reason=reason)
        self._script_approval(subject, timeout, on_expiry)

    def asks(
        self, question: str, *choices: str, timeout: float = _DAY_SECONDS, on_expiry: str = "DENY"
    ) -> None:
        """Script the next run: it waits for a person to answer this question.

        It goes on as after `requests_approval`. A function of `answers` that is next in the script
        gets the answer.
        """
        subject = approval_pb2.Approval()
        subject.question.text = question
        subject.question.choices.extend(choices)
        self._script_approval(subject, timeout, on_expiry)

    def _script_approval(self, approval: approval_pb2.Approval, timeout: float, on_expiry: str) -> None:
        policy = number_of(on_expiry, approval_pb2.ExpiryPolicy.DESCRIPTOR)
        approval.on_expiry = approval_pb2.ExpiryPolicy.ValueType(policy)
        self._fake.script.append(Outcome(approval=approval, approval_seconds=timeout))

    def says(self, *answers: str | Callable[[str], str]) -> None:
        """Script the next answers of models in the runs of workers: a text, or that of a function,
        which gets the newest message. Without a script, a model says "done".
        """
        for answer in answers:
            text = answer if callable(answer) else _always(answer)
            self._fake.runs.models.script.append(ModelStep(text))

    def calls(self, *calls: tuple[str, Mapping[str, Any]], text: str = "") -> None:
        """Script the next answer of a model: it calls tools of a worker, each by its name and its
        arguments, `("forecast", {"city": "Paris"})`, and says the text before.
        """
        self._fake.runs.models.script.append(ModelStep(_always(text), calls))

    @property
    def prompts(self) -> list[GenerateRequest]:
        """The calls of models by workers, in the messages of the contracts, oldest first."""
        return self._fake.runs.models.requests

    @asynccontextmanager
    async def working(self, *workers: Worker) -> AsyncIterator[None]:
        """Run workers during the block: `Worker(mesh)` claims the runs of sessions with the runtime
        EXTERNAL. They hand their runs back at its end.
        """
        runs = self._fake.runs
        runs.is_open = True
        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.run())
                try:
                    yield
                finally:
                    for worker in workers:
                        worker.stop()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        finally:
            runs.is_open = False

    def finish(self, session_id: str, answer: str) -> None:
        """End a run that is held with this answer."""
        self._fake.end_held(session_id, Outcome(_always(answer)))

    def refuses(
        self,
        reason: Reason,
        message: str = "refused by the test",
        *,
        retry_after_seconds: float | None = None,
        **facts: Fact,
    ) -> None:
        """Refuse the next spawn or message."""
        refusal = MeshError(reason, message, retry_after_seconds=retry_after_seconds, facts=facts)
        self._fake.refusals.append(refusal)

    @property
    def spawned(self) -> list[SpawnedTask]:
        """The spawns of sessions that were not deleted, oldest first."""
        return [
            SpawnedTask(
                session_id,
                record.request.task,
                record.session.agent_id,
                record.request.label,
                record.request.model,
                {file.name: file.data for file in record.files},
            )
            for session_id, record in self._fake.records.items()
        ]


class _FakeConnection(Connection):
    """A connection whose calls are answered in this process."""

    services: FakeServices

    def __init__(self, name: str, services: FakeServices) -> None:
        super().__init__(name, cast(Any, _FakeChannel()))
        object.__setattr__(self, "services", services)

    async def unary(
        self, method: Any, request: Any, *, token: Callable[[], str], timeout_seconds: float
    ) -> Any:
        if not isinstance(request, AsyncIterator):
            require_valid(request)
            request = deepcopy(request)
        return deepcopy(await self._handler(method, token())(request))

    async def stream(
        self,
        method: Any,
        request: Any,
        *,
        token: Callable[[], str],
        timeout_seconds: float,
        quiet_seconds: float = 0.0,
    ) -> AsyncGenerator[Any, None]:
        require_valid(request)
        async for answer in self._handler(method, token())(request):
            yield deepcopy(answer)

    def _handler(self, method: Any, token: str) -> Any:
        name, services = method.path.rpartition("/")[2], self.services
        for of_runs in (services.runs, services.transcripts):
            if handler := getattr(of_runs, name, None):
                return lambda request: handler(request, token)
        if name == "SpawnSession" and (parent := services.runs.record_of(token)) is not None:
            return lambda request: services.SpawnSession(_child(request, parent.session.session_id))
        for one in (services, services.webhooks, services.schedules, services.operations):
            if handler := getattr(one, name, None):
                return handler
        raise MeshError(Reason.UNKNOWN_RPC, f"FakeMesh has no {method.path}")


def _child(request: Any, parent_session_id: str) -> Any:
    spawned = deepcopy(request)
    spawned.parent_session_id = parent_session_id
    return spawned


class _FakeChannel:
    """A channel for stubs, without a connection."""

    def unary_unary(self, method: str, *_serializers: Any, **_more: Any) -> Any:
        return None  # The connection knows the path of the method, and makes the call.

    unary_stream = stream_unary = stream_stream = unary_unary


def _always(text: str) -> Callable[[str], str]:
    return lambda _: text
