"""Changes to a transcript while a prompt window is open: those that keep it and those that break
it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, bash, extension, mirror, note, result, superseded, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.forgery import Forger

OTHER_RUN = new_id(IdKind.RUN)


@dataclass(frozen=True)
class World:
    """A transcript of three entries (header, task, call) with an open window, and its other
    writers."""

    session: Session
    claim: pb.WriterClaim
    task_id: str
    forger: Forger

    async def own(self, *bodies: entry_pb2.EntryBody) -> None:
        await self.session.append(bodies, claim=self.claim)

    async def people(self, *bodies: entry_pb2.EntryBody) -> None:
        await self.session.append(bodies)

    async def gateway(self, *bodies: entry_pb2.EntryBody) -> None:
        await self.session.append(bodies, token=self.session.mirror_token())

    async def other(self, *bodies: entry_pb2.EntryBody, run_id: str = OTHER_RUN) -> None:
        claim = await self.session.acquire(2, run_id=run_id)
        if bodies:
            await self.session.append(bodies, claim=claim)

    async def forge(
        self, body: entry_pb2.EntryBody | bytes, kind: str = "MESSAGE", role: str = "ASSISTANT"
    ) -> None:
        stored = body if isinstance(body, bytes) else body.SerializeToString(deterministic=True)
        await self.forger.insert(stored, kind=kind, role=role, claim=self.claim)


Meanwhile = Callable[[World], Awaitable[object]]
FENCE = 3
LARGE = assistant("x" * 5_000_000)
MODEL_CHANGE = entry_pb2.EntryBody(model_change=entry_pb2.ModelChange(model="p/m"))
COMPACTION = entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary="s"))
BRANCH_SUMMARY = entry_pb2.EntryBody(branch_summary=entry_pb2.BranchSummary(summary="s"))
CUSTOM = entry_pb2.EntryBody(custom=entry_pb2.Custom(custom_type="t"))
OPAQUE = entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="t", entry_json="{}"))


async def nothing(world: World) -> None:
    """Change nothing."""


def own(*bodies: entry_pb2.EntryBody) -> Meanwhile:
    return lambda world: world.own(*bodies)


async def own_one_by_one(world: World) -> None:
    for number in range(20):
        await world.own(assistant(str(number), f"c{number}"))
        await world.own(result(f"c{number}", "done"))


async def own_over_several_pages(world: World) -> None:
    for _ in range(3):
        await world.own(*[result("c", str(number)) for number in range(200)])


async def own_and_mirrors(world: World) -> None:
    await world.gateway(mirror("one"))
    await world.own(result("c", "r"), assistant("a"))
    await world.gateway(mirror("two"), mirror("three"))


async def own_twice_under_one_key(world: World) -> None:
    for _ in range(2):
        await world.session.append([assistant("a")], claim=world.claim, key="k")


async def own_by_the_session_service(world: World) -> None:
    await world.session.append([assistant("a")], claim=world.claim, token=world.session.service_token())


async def blank_entries_that_are_refused(world: World) -> None:
    empty_block = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock()])
    for blank in (entry_pb2.EntryBody(), entry_pb2.EntryBody(message=empty_block)):
        with refused(Reason.INVALID_REQUEST):
            await world.own(assistant("a"), blank)


async def unowned_answers_that_are_refused(world: World) -> None:
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await world.people(user("hi"), assistant("a"))
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await world.own(mirror("m"))


async def a_takeover_that_fails(world: World) -> None:
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.session.acquire(1, run_id=OTHER_RUN)


async def the_claim_acquired_again(world: World) -> None:
    await world.session.acquire_claim(world.claim)


async def an_append_that_contradicts_its_key(world: World) -> None:
    await world.session.append([assistant("a")], claim=world.claim, key="k")
    with refused(Reason.REQUEST_ID_REUSED):
        await world.session.append([user("b")], claim=world.claim, key="k")


async def another_session(world: World) -> None:
    sibling = world.session.sibling()
    await sibling.create(fork_of=world.session)
    await sibling.append([user("hi")])
    await sibling.delete()


async def another_tenant(world: World) -> None:
    stranger = Session(world.session.service, f"{world.session.tenant_id}-x", world.session.session_id)
    await stranger.create()
    await stranger.append([user("hi")])
    await stranger.delete()


HOLD: dict[str, Meanwhile] = {
    "nothing": nothing,
    "own answer": own(assistant("a")),
    "own result": own(result("c", "r")),
    "own command": own(bash("ls", "a\nb")),
    "own answer without a word": own(assistant("")),
    "own of all three roles": own(result("c", "r"), bash("ls"), assistant("a")),
    "own, one by one": own_one_by_one,
    "own, several pages": own_over_several_pages,
    "own, large": own(assistant("small"), LARGE, LARGE, assistant("small")),
    "own, by the session service": own_by_the_session_service,
    "own, twice under one key": own_twice_under_one_key,
    "own, and its key reused": an_append_that_contradicts_its_key,
    "a mirror": lambda world: world.gateway(mirror("m")),
    "own and mirrors": own_and_mirrors,
    "blank entries refused": blank_entries_that_are_refused,
    "unowned answers refused": unowned_answers_that_are_refused,
    "takeover refused": a_takeover_that_fails,
    "claim acquired again": the_claim_acquired_again,
    "another session": another_session,
    "another tenant": another_tenant,
}


async def recreated(world: World) -> None:
    await world.session.create_anew()


async def recreated_longer_than_before(world: World) -> None:
    await recreated(world)
    claim = await world.session.acquire_claim(world.claim)
    assert claim.writer_run_id == world.claim.run_id
    await world.own(*[assistant("a")] * 5)


async def shrunk(world: World) -> None:
    await world.forger.delete(3)
    await world.forger.rechain()


async def shrunk_and_grown_again(world: World) -> None:
    await shrunk(world)
    await world.own(assistant("another"))


async def newest_deleted_and_the_head_left(world: World) -> None:
    await world.own(assistant("a"), assistant("b"))
    await world.forger.delete(5)


async def deleted_in_the_middle(world: World) -> None:
    await world.own(assistant("a"), assistant("b"), assistant("c"))
    await world.forger.delete(5)


async def fence_deleted(world: World) -> None:
    await world.own(assistant("a"))
    await world.forger.delete(3)


async def task_rewritten(world: World) -> None:
    await world.forger.set_body(2, user("another task").SerializeToString())
    await world.forger.rechain()


async def fence_rewritten(world: World) -> None:
    await world.forger.set_body(3, assistant("another").SerializeToString())
    await world.forger.rechain()
    await world.own(result("c", "r"))


async def fence_rewritten_in_place(world: World) -> None:
    await world.forger.set_body(3, assistant("another").SerializeToString(deterministic=True))


async def answer_rewritten(world: World) -> None:
    await world.own(result("c", "r"), assistant("mine"))
    await world.forger.set_body(5, assistant("mind").SerializeToString())


async def header_swapped(world: World) -> None:
    await world.forger.set_body(1, b"")
    await world.forger.rechain()


async def head_moved_without_an_entry(world: World) -> None:
    await world.forger.set_head(4, bytes(32))


async def head_of_another_chain(world: World) -> None:
    await world.own(assistant("a"))
    await world.forger.set_head(4, bytes(32))


async def own_then(world: World, *bodies: entry_pb2.EntryBody, count: int = 1) -> None:
    for start in range(0, count, 200):
        await world.own(*[assistant("a")] * min(200, count - start))
    await world.own(*bodies)


async def compacted_in_between(world: World) -> None:
    await world.own(assistant("a"), COMPACTION)
    await world.own(assistant("b"))


async def foreign_among_own(world: World) -> None:
    await world.own(assistant("mine"))
    await world.other(assistant("theirs"))


async def foreign_and_taken_back(world: World) -> None:
    await world.other(assistant("theirs"))
    await world.session.acquire(3, run_id=world.claim.run_id)


async def mirror_of_nobody(world: World) -> None:
    await world.forger.insert(mirror("m").SerializeToString(deterministic=True), kind="MIRROR")


async def mirror_of_the_run(world: World) -> None:
    body = mirror("m").SerializeToString(deterministic=True)
    await world.forger.insert(body, kind="MIRROR", claim=world.claim, client="gateway")


async def labelled_by_the_session_service(world: World) -> None:
    await world.session.append(
        [superseded(world.task_id)], claim=world.claim, token=world.session.service_token()
    )


_MESSAGE = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock()])
_EMPTY_BLOCK = entry_pb2.EntryBody(message=_MESSAGE)
_BLANK_NAME = assistant("a", "c")
_BLANK_NAME.message.content[1].tool_call.name = " "
_SWAPPED = (
    # Content before role: the same message with other bytes.
    b"\x12\x0b\x12\x07\x0a\x05\x0a\x03abc\x08\x02"
)

TRIP: dict[str, tuple[Meanwhile, int, str, str]] = {
    "a user's turn": (lambda world: world.people(user("u")), 4, "MESSAGE", "FOREIGN_WRITER"),
    "a user's turn, taken over by the run": (own(user("u")), 4, "MESSAGE", "KIND"),
    "a note": (lambda world: world.people(note("n")), 4, "NOTE", "FOREIGN_WRITER"),
    "own note": (own(note("n")), 4, "NOTE", "KIND"),
    "own label": (lambda world: world.own(superseded(world.task_id)), 4, "LABEL", "KIND"),
    "label by the session service": (labelled_by_the_session_service, 4, "LABEL", "KIND"),
    "own model change": (own(MODEL_CHANGE), 4, "MODEL_CHANGE", "KIND"),
    "own compaction": (own(COMPACTION), 4, "COMPACTION", "KIND"),
    "own branch summary": (own(BRANCH_SUMMARY), 4, "BRANCH_SUMMARY", "KIND"),
    "own custom entry": (own(CUSTOM), 4, "CUSTOM", "KIND"),
    "own opaque entry": (own(OPAQUE), 4, "OPAQUE", "KIND"),
    "own extension's message": (own(extension("e")), 4, "MESSAGE", "KIND"),
    "compaction in between": (compacted_in_between, 5, "COMPACTION", "KIND"),
    "model change behind several pages": (
        lambda world: own_then(world, MODEL_CHANGE, count=600),
        604,
        "MODEL_CHANGE",
        "KIND",
    ),
    "note behind large ones": (own(assistant("a"), LARGE, LARGE, note("n")), 7, "NOTE", "KIND"),
    "foreign answer": (lambda world: world.other(assistant("a")), 4, "MESSAGE", "FOREIGN_WRITER"),
    "foreign result": (lambda world: world.other(result("c", "r")), 4, "MESSAGE", "FOREIGN_WRITER"),
    "foreign command": (lambda world: world.other(bash("ls")), 4, "MESSAGE", "FOREIGN_WRITER"),
    "foreign compaction": (lambda world: world.other(COMPACTION), 4, "COMPACTION", "FOREIGN_WRITER"),
    "the run at another epoch": (
        lambda world: world.other(assistant("a"), run_id=world.claim.run_id),
        4,
        "MESSAGE",
        "FOREIGN_WRITER",
    ),
    "foreign among own": (foreign_among_own, 5, "MESSAGE", "FOREIGN_WRITER"),
    "foreign, and the run at a new epoch": (foreign_and_taken_back, 4, "MESSAGE", "FOREIGN_WRITER"),
    "re-created": (recreated, 1, "HEADER", "INCARNATION"),
    "re-created, longer": (recreated_longer_than_before, 1, "HEADER", "INCARNATION"),
    "shrunk": (shrunk, 3, "", "SHRUNK"),
    "shrunk and grown again": (shrunk_and_grown_again, 3, "MESSAGE", "REWRITTEN"),
    "newest deleted": (newest_deleted_and_the_head_left, 5, "", "SHRUNK"),
    "one in the middle deleted": (deleted_in_the_middle, 5, "", "SHRUNK"),
    "fence deleted": (fence_deleted, 3, "", "SHRUNK"),
    "task rewritten": (task_rewritten, 3, "MESSAGE", "REWRITTEN"),
    "fence rewritten": (fence_rewritten, 3, "MESSAGE", "REWRITTEN"),
    "fence rewritten in place": (fence_rewritten_in_place, 3, "MESSAGE", "REWRITTEN"),
    "header rewritten": (header_swapped, 3, "MESSAGE", "REWRITTEN"),
    "own answer rewritten": (answer_rewritten, 5, "MESSAGE", "REWRITTEN"),
    "head without its entry": (head_moved_without_an_entry, 4, "", "SHRUNK"),
    "head of another chain": (head_of_another_chain, 4, "", "REWRITTEN"),
    "blank": (lambda world: world.forge(b""), 4, "MESSAGE", "NOT_CANONICAL"),
    "no protobuf": (lambda world: world.forge(b"\xff\xff"), 4, "MESSAGE", "NOT_CANONICAL"),
    "other bytes of the same message": (lambda world: world.forge(_SWAPPED), 4, "MESSAGE", "NOT_CANONICAL"),
    "another kind than it says": (lambda world: world.forge(note("n")), 4, "MESSAGE", "NOT_CANONICAL"),
    "another role than it says": (lambda world: world.forge(user("u")), 4, "MESSAGE", "NOT_CANONICAL"),
    "a blank block": (lambda world: world.forge(_EMPTY_BLOCK), 4, "MESSAGE", "NOT_CANONICAL"),
    "a call of nothing": (lambda world: world.forge(_BLANK_NAME), 4, "MESSAGE", "NOT_CANONICAL"),
    "a result of nothing": (
        lambda world: world.forge(result("", "r"), role="TOOL_RESULT"),
        4,
        "MESSAGE",
        "NOT_CANONICAL",
    ),
    "a note with an answer's role": (
        lambda world: world.forge(note("n"), kind="NOTE", role="ASSISTANT"),
        4,
        "NOTE",
        "KIND",
    ),
    "a mirror by nobody": (mirror_of_nobody, 4, "MIRROR", "FOREIGN_WRITER"),
    "a mirror by the run": (mirror_of_the_run, 4, "MIRROR", "KIND"),
}
