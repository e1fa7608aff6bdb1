"""Calls every RPC of a mesh with random messages and bytes, and keeps what broke a rule."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack
from spawnmesh_plugin import hook
from spawnmesh_plugin.handlers import Handlers
from spawnmesh_plugin.serving import ALL_TENANTS, plugin_server
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.fuzz.rpcs.callers import Identity
from tests.fuzz.rpcs.calls import SECONDS, is_watch, problem_of
from tests.fuzz.rpcs.memory import Memory, sampled_memory
from tests.fuzz.rpcs.messages import RandomMessages
from tests.fuzz.rpcs.mutations import mutated
from tests.support.security.every_rpc import SERVED_BY_PLUGINS, Served, ask, channels_to, served_rpcs

_CONCURRENT = 8
_NEW_TENANT_SECONDS = 20.0
_MESSAGES_OF_A_STREAM = 3
_MUTATED = 0.25
_SHOWN = 400
_PLUGIN = "plugin"
_OPEN = {
    method.full_name: method
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
"""The RPCs that need no token."""

_OF_OTHER_TENANTS = {"ListTenants", "ListJobs"}
"""The answers of these are not sent: a fuzzer with an administrator's token would delete it."""


@dataclass(frozen=True)
class Target:
    """The connections to everything that is called, and the RPCs of each."""

    channels: dict[str, grpc.aio.Channel]
    rpcs: list[Served]
    plugin: str


@asynccontextmanager
async def open_target(stack: Stack) -> AsyncIterator[Target]:
    """Connect to the services and to a plugin, and list their RPCs."""
    async with AsyncExitStack() as exits:
        endpoint = await exits.enter_async_context(_serving_plugin(stack.keys))
        targets = {**stack.targets, _PLUGIN: endpoint.removeprefix("grpc://")}
        channels = await exits.enter_async_context(channels_to(targets))
        rpcs = await served_rpcs({name: channels[name] for name in stack.targets})
        handlers = next(one for one in mesh_services() if one.full_name == SERVED_BY_PLUGINS)
        rpcs += [Served(_PLUGIN, method) for method in handlers.methods]
        rpcs += [Served(name, method) for name in targets for method in _OPEN.values()]
        yield Target(channels, rpcs, endpoint)


@hook("before_spawn")
def _no_objection(_event: Any) -> None:
    """Let everything pass, as a plugin does at hooks without a handler."""


@asynccontextmanager
async def _serving_plugin(keys: Path) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    endpoint = f"grpc://127.0.0.1:{port}"
    settings = ProcessSettings(jwks_file=keys / "jwks.json", log_level="error")
    async with start_process("plugin", settings) as process:
        server = plugin_server(process, Handlers([_no_objection]), endpoint=endpoint, tenants=ALL_TENANTS)
        server.add_insecure_port(endpoint.removeprefix("grpc://"))
        await server.start()
        try:
            yield endpoint
        finally:
            await server.stop(None)


async def new_identity(stack: Stack, tenant_id: str) -> Identity:
    """Create a tenant with a session that has ended, of which a file and a transcript are left."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant_id)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant_id)) as mesh:
        session = await mesh.spawn(
            "Say yes.",
            attachments=[Attachment("a.txt", b"hello")],
            mode=session_pb2.SESSION_MODE_SESSION,
            wait_seconds=30.0,
        )
    run = session.latest_run
    return Identity(stack.keys, tenant_id, session.session_id, run.run_id, run.epoch)


class Fuzzer:
    """Calls RPCs until it is stopped. The same seed sends the same messages to the same answers."""

    def __init__(self, stack: Stack, target: Target, seed: int, *, name: str = "fuzz") -> None:
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self._stack = stack
        self._target = target
        self._random = random.Random(seed)
        self._name = name
        self._tenants = 0
        self._turn: list[Served] = []

    async def run_for(self, seconds: float) -> None:
        """Take a new tenant from time to time: an administrator may have deleted the last one."""
        ends = monotonic() + seconds
        while monotonic() < ends:
            until = min(ends, monotonic() + _NEW_TENANT_SECONDS)
            await self._call_while(lambda until=until: monotonic() < until)  # type: ignore[misc]

    async def run_rounds(self, count: int) -> None:
        """Call each RPC so many times."""
        calls = count * len(self._target.rpcs)
        await self._call_while(lambda: self.called.total() < calls - _CONCURRENT)

    async def _call_while(self, goes_on: Callable[[], bool]) -> None:
        self._tenants += 1
        identity = await new_identity(self._stack, f"{self._name}-{self._tenants}")
        messages = RandomMessages(self._random, identity.fields)

        async def go_on() -> None:
            while goes_on():
                await self._call(self._next(), identity, messages)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENT):
                group.create_task(go_on())

    def _next(self) -> Served:
        """Return each RPC in turn, in a new order each time."""
        if not self._turn:
            self._turn = self._random.sample(self._target.rpcs, len(self._target.rpcs))
        return self._turn.pop()

    async def _call(self, rpc: Served, identity: Identity, messages: RandomMessages) -> None:
        method = rpc.method
        token = ""
        if method.full_name not in _OPEN:
            plugin = self._target.plugin if rpc.service == _PLUGIN else ""
            token = identity.token_for(policy_of(method), self._random, plugin=plugin)
        made = [messages.make(method.input_type) for _ in range(_MESSAGES_OF_A_STREAM)]
        sent = [message.SerializeToString() for message in made]
        is_mutated = self._random.random() < _MUTATED
        if is_mutated:
            place = self._random.randrange(len(sent)) if method.client_streaming else 0
            sent[place] = mutated(sent[place], self._random)
        self.called[rpc.name] += 1
        try:
            answer = await ask(
                self._target.channels[rpc.service],
                method,
                token,
                *sent,
                seconds=SECONDS,
                may_be_silent=is_watch(method),
            )
        except (MeshError, ValueError) as error:
            self.problems.append(f"{rpc.name}: {type(error).__name__} in the client: {error}")
            return
        self.outcomes[f"{answer.code} {answer.reason or ''}".strip()] += 1
        if method.name not in _OF_OTHER_TENANTS:
            _learn(messages, method, answer.messages)
        if problem := problem_of(method, answer):
            shown = sent[0].hex() if is_mutated else str(made[0]).replace("\n", " ")
            self.problems.append(f"{rpc.name}: {problem}\n  {shown[:_SHOWN]}")


def _learn(messages: RandomMessages, method: MethodDescriptor, answers: tuple[bytes, ...]) -> None:
    kind = message_factory.GetMessageClass(method.output_type)
    for answer in answers:
        try:
            messages.learn(kind.FromString(answer))
        except DecodeError:  # A message of 4 MiB that was cut is no answer; `problem_of` has judged it.
            continue


async def still_well(stack: Stack, pids: dict[str, int], name: str) -> list[str]:
    """Return what is wrong with the processes after all calls."""
    problems = [
        f"{process} ended and was started again"
        for process, pid in pids.items()
        if stack.pids[process] != pid
    ]
    problems += [
        f"{process} has ended" for process in pids if stack.processes[process].returncode is not None
    ]
    try:
        await new_identity(stack, f"{name}-after")
    except (MeshError, RuntimeError) as error:
        problems.append(f"a session does not run to its answer: {error}")
    return problems


@asynccontextmanager
async def fuzzing(stack: Stack, seed: int, name: str) -> AsyncIterator[tuple[Fuzzer, Memory]]:
    """Give a fuzzer. After the block it also has the problems of the processes and their memory."""
    pids = {process: stack.pids[process] for process in stack.processes}
    async with open_target(stack) as target, sampled_memory(lambda: stack.pids) as memory:
        fuzzer = Fuzzer(stack, target, seed, name=name)
        yield fuzzer, memory
        fuzzer.problems += await still_well(stack, pids, name)
    fuzzer.problems += memory.problems()
