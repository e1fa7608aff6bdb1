"""Any interleaving of runners, takeovers, mirrors, crashes and new transcripts: the service
answers as a simple model does."""

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from tests.support.transcript.bodies import assistant, bash, mirror, note, result, user
from tests.support.transcript.fixtures import Service

T = TypeVar("T")
BODIES = {
    "answer": assistant("a", "c"),
    "result": result("c", "r"),
    "command": bash("ls", "a"),
    "user": user("u"),
    "note": note("n"),
    "compaction": entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary="s")),
    "custom": entry_pb2.EntryBody(custom=entry_pb2.Custom(custom_type="t")),
}
KINDS = {
    "header": "HEADER",
    "note": "NOTE",
    "compaction": "COMPACTION",
    "custom": "CUSTOM",
    "mirror": "MIRROR",
}
OWN = ("answer", "result", "command")
RUNNERS = st.sampled_from(
    [None, None, None, None, 0, 1, 2]
)  # None stands for the current writer, which makes most of the changes.
Claim = tuple[str, int]
Window = tuple[pb.Fence, int, int]
LOST = "WRITER_CLAIM_LOST"


@dataclass
class Written:
    """An entry of the model: its kind and its claim."""

    name: str
    claim: Claim | None = None


@dataclass
class Runner:
    """A runner with one epoch at a time and its open windows: the service's fence and the
    model's position."""

    run_id: str = field(default_factory=lambda: new_id(IdKind.RUN))
    epoch: int = 1
    windows: list[Window] = field(default_factory=list)

    @property
    def claim(self) -> Claim:
        return self.run_id, self.epoch


class Windows(RuleBasedStateMachine):
    """A transcript and three runners."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.session = service.session()
        self.runners = [Runner() for _ in range(3)]
        self.appended: list[tuple[list[str], Claim | None, str]] = []
        self.incarnation = 0
        self.wait(self.session.create())
        self.begin()

    def begin(self) -> None:
        self.entries = [Written("header")]
        self.holder: Claim | None = None
        self.highest_epoch = 0
        self.appended.clear()
        self.acquire_at(self.runners[0], 1)

    def chosen(self, runner: int | None) -> Runner:
        if runner is not None:
            return self.runners[runner]
        return next((one for one in self.runners if one.claim == self.holder), self.runners[0])

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def answer(self, work: Coroutine[Any, Any, T]) -> tuple[T | None, tuple[str, ...]]:
        """Return the answer, or the reason of the refusal and its position."""
        try:
            return self.wait(work), ()
        except MeshError as error:
            facts = error.facts
            where = (facts[name] for name in ("offending_seq", "offending_kind", "cause") if name in facts)
            return None, (error.reason.value, *where)

    def append(
        self, names: list[str], claim: Claim | None, key: str, fence: pb.Fence | None = None
    ) -> tuple[str, ...]:
        bodies = [BODIES[name] if name != "mirror" else mirror("m") for name in names]
        holder = pb.WriterClaim(run_id=claim[0], epoch=claim[1]) if claim else None
        token = self.session.mirror_token() if "mirror" in names else ""
        appending = self.session.append(bodies, claim=holder, key=key, token=token, fence=fence)
        answer, refusal = self.answer(appending)
        if answer and not answer.replayed:
            assert [entry.seq for entry in answer.entries] == [
                len(self.entries) + 1 + place for place in range(len(names))
            ]
            self.entries += [Written(name, claim) for name in names]
            self.appended.append((names, claim, key))
        return refusal

    @rule(runner=st.integers(0, 2), ahead=st.integers(0, 2))
    def acquire(self, runner: int, ahead: int) -> None:
        """Acquire at an epoch above all, or at the runner's own, which may be too low by now."""
        me = self.runners[runner]
        self.acquire_at(me, self.highest_epoch + ahead if ahead else me.epoch)

    def acquire_at(self, me: Runner, epoch: int) -> None:
        me.epoch = epoch
        _, refusal = self.answer(self.session.acquire_claim(pb.WriterClaim(run_id=me.run_id, epoch=epoch)))
        if epoch > self.highest_epoch or me.claim == self.holder:
            assert refusal == ()
            self.holder, self.highest_epoch = me.claim, epoch
        else:
            assert refusal == (LOST,)

    @precondition(lambda self: len(self.entries) > 8)
    @rule(runner=RUNNERS)
    def release(self, runner: int | None) -> None:
        me = self.chosen(runner)
        self.wait(self.session.release(pb.WriterClaim(run_id=me.run_id, epoch=me.epoch)))
        if self.holder == me.claim:
            self.holder = None

    @rule(runner=RUNNERS, names=st.lists(st.sampled_from(OWN), min_size=1, max_size=3))
    def answer_or_run_tools(self, runner: int | None, names: list[str]) -> None:
        self.append_under_claim(runner, names)

    @rule(runner=RUNNERS, names=st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=3))
    def append_anything(self, runner: int | None, names: list[str]) -> None:
        self.append_under_claim(runner, names)

    def append_under_claim(self, runner: int | None, names: list[str]) -> None:
        me = self.chosen(runner)
        refusal = self.append(names, me.claim, secrets.token_hex(8))
        assert refusal == (() if me.claim == self.holder else (LOST,))

    @rule(name=st.sampled_from(["user", "note"]))
    def append_unowned(self, name: str) -> None:
        assert self.append([name], None, secrets.token_hex(8)) == ()

    @rule(count=st.integers(1, 3))
    def deliver(self, count: int) -> None:
        assert self.append(["mirror"] * count, None, secrets.token_hex(8)) == ()

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Repeat an append whose answer was lost, under any current claim."""
        names, claim, key = data.draw(st.sampled_from(self.appended))
        before = len(self.entries)
        assert self.append(names, claim, key) == ()
        assert len(self.entries) == before

    @precondition(lambda self: len(self.entries) > 8)
    @rule(runner=RUNNERS)
    def crash(self, runner: int | None) -> None:
        """Forget the windows between opening and closing; the runner is another run next time."""
        self.runners[self.runners.index(self.chosen(runner))] = Runner()

    @precondition(lambda self: len(self.entries) > 12)
    @rule()
    def begin_anew(self) -> None:
        self.wait(self.session.create_anew())
        self.incarnation += 1
        self.begin()

    @rule(runner=RUNNERS)
    def open(self, runner: int | None) -> None:
        me = self.chosen(runner)
        claim = pb.WriterClaim(run_id=me.run_id, epoch=me.epoch)
        if me.epoch > self.highest_epoch:
            self.holder, self.highest_epoch = me.claim, me.epoch
        fence, refusal = self.answer(self.session.open_window(claim))
        assert refusal == (() if me.claim == self.holder else (LOST,))
        if fence:
            assert fence.seq == len(self.entries)
            me.windows.append((fence, self.incarnation, len(self.entries)))

    @precondition(lambda self: any(runner.windows for runner in self.runners))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        me = data.draw(st.sampled_from([runner for runner in self.runners if runner.windows]))
        self.close_window(me, data.draw(st.sampled_from(me.windows)))

    @precondition(lambda self: any(runner.windows for runner in self.runners))
    @rule(data=st.data())
    def close_with_an_answer(self, data: st.DataObject) -> None:
        """Append an answer with the fence of a window, which may be closed before."""
        me = data.draw(st.sampled_from([runner for runner in self.runners if runner.windows]))
        fence, incarnation, position = data.draw(st.sampled_from(me.windows))
        expected = self.expected(me.claim, incarnation, position)
        assert self.append(["answer"], me.claim, secrets.token_hex(8), fence) == expected

    @rule(
        meanwhile=st.lists(
            st.sampled_from([*OWN * 3, *BODIES, "mirror", "mirror", "by people", "by another"]), max_size=4
        )
    )
    def ask_a_model(self, meanwhile: list[str]) -> None:
        """Open and close a window of the current writer."""
        self.open(None)
        me = self.chosen(None)
        for name in meanwhile:
            match name:
                case "mirror":
                    self.deliver(1)
                case "by people":
                    self.append_unowned("user")
                case "by another":
                    self.acquire_at(self.runners[self.runners.index(me) - 1], self.highest_epoch + 1)
                    self.append_under_claim(None, ["answer"])
                case _:
                    self.append_under_claim(self.runners.index(me), [name])
        if me.windows:
            self.close_window(me, me.windows[-1])

    def close_window(self, me: Runner, window: Window) -> None:
        fence, incarnation, position = window
        claim = pb.WriterClaim(run_id=me.run_id, epoch=me.epoch)
        moved, refusal = self.answer(self.session.close_window(claim, fence))
        assert refusal == self.expected(me.claim, incarnation, position)
        if moved:
            assert moved.seq == len(self.entries)
            me.windows.remove(window)
            me.windows.append((moved, incarnation, len(self.entries)))

    def expected(self, claim: Claim, incarnation: int, position: int) -> tuple[str, ...]:
        """Return how closing a window must be refused, or None if it holds."""
        if incarnation != self.incarnation:
            return ("SESSION_TAKEOVER", "1", "HEADER", "INCARNATION")
        for seq, entry in enumerate(self.entries[position:], start=position + 1):
            kind = KINDS.get(entry.name, "MESSAGE")
            if entry.name == "mirror":
                continue
            if entry.claim != claim:
                return ("SESSION_TAKEOVER", str(seq), kind, "FOREIGN_WRITER")
            if entry.name not in OWN:
                return ("SESSION_TAKEOVER", str(seq), kind, "KIND")
        return () if claim == self.holder else (LOST,)

    def teardown(self) -> None:
        stored = self.wait(self.session.entries())
        assert [entry.seq for entry in stored] == list(range(1, len(self.entries) + 1))
        assert [(entry.writer.run_id, entry.writer.epoch) for entry in stored] == [
            entry.claim or ("", 0) for entry in self.entries
        ]


async def test_windows_and_writers_behave_as_the_model_says(service: Service) -> None:
    loop = asyncio.get_running_loop()

    class Bound(Windows):
        def __init__(self) -> None:
            super().__init__(service, loop)

    bounded = settings(
        max_examples=25,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    await asyncio.to_thread(run_state_machine_as_test, Bound, settings=bounded)
