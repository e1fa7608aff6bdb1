"""`python -m tests.fuzz.rpcs [--minutes 1] [--seed N]` calls every RPC of a fresh mesh with random
messages.

The RPCs are those that the services report by reflection. Each call must end with OK, or with a
canonical code and a reason: never INTERNAL or UNKNOWN. Afterwards all processes are the same and
answer, their memory is bounded, and a session still runs to its answer. The exit code is 1 if
something of this does not hold.
"""

import argparse
import asyncio
import random
import secrets
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import grpc.aio
import psutil
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.mesh import connect
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.methods import mesh_services
from spawnmesh_runtime.process import run_process

from tests.fuzz.rpcs.calls import Identity, Outcome, call, caller_of
from tests.fuzz.rpcs.messages import RandomMessages

_CONCURRENT = 8
_NEW_TENANT_SECONDS = 20.0
_GROWTH_MIB = 256
_MESSAGES_OF_A_STREAM = 3
_SHOWN = 400

Target = tuple[str, MethodDescriptor]


async def reflected(channels: dict[str, grpc.aio.Channel]) -> list[Target]:
    """Return each RPC of the mesh with the name of a service that serves it."""
    described = {service.full_name: service for service in mesh_services()}
    found: list[Target] = []
    for name, channel in channels.items():
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([asked])):
            served = [one.name for one in answer.list_services_response.service]
            found += [(name, rpc) for each in served if each in described for rpc in described[each].methods]
    return found


async def new_identity(stack: Stack, number: int) -> Identity:
    """Create a tenant with a session that has ended, of which a file and a transcript are left."""
    tenant_id = f"fuzz-{number}"
    async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant_id)
    async with connect(session=stack.targets["session"], token=stack.client_token(tenant_id)) as mesh:
        session = await mesh.spawn(
            "Say yes.",
            attachments=[Attachment("a.txt", b"hello")],
            mode=session_pb2.SESSION_MODE_SESSION,
            wait_seconds=30.0,
        )
    run = session.latest_run
    return Identity(stack.keys, tenant_id, session.session_id, run.run_id, run.epoch)


class Fuzzer:
    """Calls RPCs until the time is over, and keeps what broke a rule."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self._stack = stack
        self._random = random.Random(seed)
        self._tenants = 0

    async def run(self, channels: dict[str, grpc.aio.Channel], seconds: float) -> None:
        """Take a new tenant from time to time: an administrator may have deleted the last one."""
        targets, ends = await reflected(channels), monotonic() + seconds
        while monotonic() < ends:
            self._tenants += 1
            identity = await new_identity(self._stack, self._tenants)
            messages = RandomMessages(self._random, identity.fields)
            until = min(ends, monotonic() + _NEW_TENANT_SECONDS)
            await asyncio.gather(
                *(self._call_until(until, channels, targets, identity, messages) for _ in range(_CONCURRENT))
            )

    async def _call_until(
        self,
        until: float,
        channels: dict[str, grpc.aio.Channel],
        targets: list[Target],
        identity: Identity,
        messages: RandomMessages,
    ) -> None:
        while monotonic() < until:
            name, method = self._random.choice(targets)
            token = caller_of(identity, method, self._random)
            sent = [messages.make(method.input_type) for _ in range(_MESSAGES_OF_A_STREAM)]
            try:
                outcome = await call(channels[name], method, token, sent)
            except (MeshError, ValueError) as error:
                outcome = Outcome("", "", (), f"{type(error).__name__} in the client: {error}")
            for answer in outcome.answers:
                messages.learn(answer)
            self.called[method.full_name] += 1
            self.outcomes[f"{outcome.code} {outcome.reason}".strip()] += 1
            if outcome.problem:
                shown = str(sent[0])[:_SHOWN].replace("\n", " ")
                self.problems.append(f"{name} {method.full_name}: {outcome.problem}\n  {shown}")


async def still_well(stack: Stack, pids: dict[str, int], memory: dict[str, int]) -> list[str]:
    """Return what is wrong with the processes after all calls."""
    problems = [
        f"{name} ended and was started again" for name, pid in pids.items() if stack.pids[name] != pid
    ]
    for name, before in memory.items():
        grown = (_memory(stack.pids[name]) - before) / 2**20
        if grown > _GROWTH_MIB:
            problems.append(f"{name} grew by {grown:.0f} MiB")
    try:
        await new_identity(stack, 0)
    except (MeshError, RuntimeError) as error:
        problems.append(f"a session does not run to its answer: {error}")
    return problems


def _memory(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


async def fuzz(minutes: float, seed: int) -> bool:
    """Fuzz a fresh mesh, print what was found, and return whether all was well."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-fuzz-", ignore_cleanup_errors=True) as folder:
        async with AsyncExitStack() as exits:
            stack = await exits.enter_async_context(open_stack(Path(folder) / "data", _tell))
            channels = {
                name: await exits.enter_async_context(grpc.aio.insecure_channel(target))
                for name, target in stack.targets.items()
            }
            services = {name: stack.pids[name] for name in stack.processes}
            memory = {name: _memory(pid) for name, pid in services.items()}
            fuzzer = Fuzzer(stack, seed)
            await fuzzer.run(channels, minutes * 60)
            problems = [*fuzzer.problems, *await still_well(stack, services, memory)]
    for outcome, count in fuzzer.outcomes.most_common():
        print(f"{count:8} {outcome}")
    for problem in problems:
        print(problem)
    calls = fuzzer.called.total()
    print(f"seed {seed}: {calls} calls of {len(fuzzer.called)} RPCs, {len(problems)} problems")
    return not problems


def main() -> None:
    """Fuzz for the given time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rpcs")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    _tell(f"seed {given.seed}")
    if not run_process(fuzz(given.minutes, given.seed)):
        sys.exit(1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
