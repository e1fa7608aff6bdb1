"""Run processes that append to one transcript at the same time, and write the outcome of each
append.

`python -m tests.support.transcript.contender <json>` takes a list of orders and forks one process
for each, after all imports. Each process writes one line of JSON for each outcome.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.transcript.bodies import assistant


@dataclass(frozen=True)
class Orders:
    """The orders of one process, and the file for its outcomes. With `takes_over`, it answers a
    lost claim by taking the transcript back at the next epoch."""

    target: str
    keys: str
    tenant_id: str
    session_id: str
    run_id: str
    epoch: int
    name: str
    count: int
    takes_over: bool
    answers: str


@dataclass(frozen=True)
class Outcome:
    """The seq of the append, or the reason of its refusal, and the interval of the machine's clock
    in which the answer came."""

    key: str
    began: float
    ended: float
    epoch: int
    seq: int = 0
    entry_id: str = ""
    replayed: bool = False
    refused: str = ""


class Contender:
    """A writer."""

    def __init__(self, peer: Peer, orders: Orders, answers: TextIO) -> None:
        self.peer = peer
        self.orders = orders
        self.answers = answers
        self.stub = TranscriptServiceStub(peer.channel)
        self.minter = TokenMinter("session", Path(orders.keys) / "session.pem")
        self.epoch = orders.epoch

    def claim(self) -> pb.WriterClaim:
        return pb.WriterClaim(run_id=self.orders.run_id, epoch=self.epoch)

    def token(self) -> str:
        orders = self.orders
        return self.minter.run_token(orders.tenant_id, orders.session_id, orders.run_id, self.epoch, 300)

    async def work(self) -> None:
        for number in range(self.orders.count):
            key = f"{self.orders.name}/{number}"
            while not (outcome := await self.append(key)).seq:
                await self.take_over(outcome)
            if number % 3 == 0:  # Acts as if the answer was lost.
                await self.append(key)

    async def append(self, key: str) -> Outcome:
        request = pb.AppendEntriesRequest(
            session_id=self.orders.session_id,
            claim=self.claim(),
            request_id=key,
            entries=[assistant(key)],
        )
        began = time.monotonic()
        try:
            with use_token(self.token()):
                answer = await self.peer.unary(self.stub.AppendEntries, request, timeout_seconds=60)
        except MeshError as error:
            self.lost = error
            outcome = Outcome(key, began, time.monotonic(), self.epoch, refused=error.reason.value)
        else:
            (entry,) = answer.entries
            outcome = Outcome(
                key, began, time.monotonic(), self.epoch, entry.seq, entry.entry_id, answer.replayed
            )
        print(json.dumps(asdict(outcome)), file=self.answers)
        return outcome

    async def take_over(self, outcome: Outcome) -> None:
        """Take the transcript back. Raises the refusal if a takeover does not answer it."""
        while self.orders.takes_over and self.lost.reason is Reason.WRITER_CLAIM_LOST:
            self.epoch = int(self.lost.facts["writer_epoch"]) + 1
            request = pb.AcquireWriterRequest(session_id=self.orders.session_id, claim=self.claim())
            try:
                with use_token(self.token()):
                    await self.peer.unary(self.stub.AcquireWriter, request, timeout_seconds=60)
            except MeshError as error:
                self.lost = error
            else:
                return
        raise self.lost


async def contend(orders: Orders, answers: TextIO) -> None:
    async with (
        start_process("test", ProcessSettings(log_level="error")) as process,
        open_peer(process, "transcript", orders.target) as peer,
    ):
        await Contender(peer, orders, answers).work()


def run(orders: Orders) -> None:
    with open(orders.answers, "w") as answers:
        asyncio.run(contend(orders, answers))


def main(orders: list[Orders]) -> int:
    """Return the number of processes that failed."""
    processes = [get_context("fork").Process(target=run, args=(each,)) for each in orders]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main([Orders(**each) for each in json.loads(sys.argv[1])]))
