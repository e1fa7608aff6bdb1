"""ListEntries and FollowEntries: pages in both directions, filters, and live entries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.rpc import follow_entries
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import assistant, bash, mirror, note, result, text_of, user
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tier_sessions import with_image

SECONDS = 60.0


def seqs(page: pb.ListEntriesResponse) -> list[int]:
    return [entry.seq for entry in page.entries]


async def test_ListEntries__pages_downwards_from_the_end(session: Session) -> None:
    await session.append([user(str(number)) for number in range(24)])
    first = await session.page(before_seq=0, page_size=10)
    assert (seqs(first), first.head.seq) == (list(range(16, 26)), 25)
    second = await session.page(before_seq=0, page_size=10, page_token=first.next_page_token)
    assert seqs(second) == list(range(6, 16))
    last = await session.page(before_seq=0, page_size=5, page_token=second.next_page_token)
    assert (seqs(last), last.next_page_token) == ([1, 2, 3, 4, 5], "")
    nothing = await session.page(before_seq=1)
    assert (seqs(nothing), nothing.next_page_token) == ([], "")


async def test_ListEntries__has_a_token_if_there_is_more_upwards(session: Session) -> None:
    await session.append([user(str(number)) for number in range(9)])
    assert (await session.page(page_size=9)).next_page_token
    assert not (await session.page(page_size=10)).next_page_token
    assert not (await session.page(after_seq=10)).next_page_token


async def test_ListEntries__a_range_and_a_filter_hold_on_every_page(session: Session) -> None:
    await session.append([note("n"), user("u1"), note("n"), user("u2"), note("n"), user("u3")])
    first = await session.page(after_seq=3, kinds=[entry_pb2.ENTRY_KIND_MESSAGE], page_size=1)
    second = await session.page(
        after_seq=3,
        kinds=[entry_pb2.ENTRY_KIND_MESSAGE],
        page_size=2,
        page_token=first.next_page_token,
    )
    assert (seqs(first), seqs(second), second.next_page_token) == ([5], [7], "")


@pytest.mark.parametrize("downwards", [False, True])
async def test_ListEntries__a_page_cut_short_by_large_entries_reports_more(
    session: Session, downwards: bool
) -> None:
    await session.append([user("x " * 1_500_000), user("y " * 1_500_000)])
    seen: list[int] = []
    token = ""
    while True:
        page = await session.page(before_seq=0 if downwards else None, page_token=token)
        seen = seqs(page) + seen if downwards else seen + seqs(page)
        assert page.entries
        token = page.next_page_token
        if not token:
            break
    assert seen == [1, 2, 3]


async def _mixed(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([note("n"), user("u")])
    await session.append([assistant("a", "c"), result("c", "r"), bash("ls"), assistant("b")], claim=claim)
    await session.append([mirror("m")], token=session.mirror_token())


FILTERED = [
    ((entry_pb2.ENTRY_KIND_NOTE,), (), [2]),
    ((entry_pb2.ENTRY_KIND_MESSAGE,), (), [3, 4, 5, 6, 7]),
    ((entry_pb2.ENTRY_KIND_MIRROR, entry_pb2.ENTRY_KIND_HEADER), (), [1, 8]),
    ((), (content_pb.ROLE_ASSISTANT,), [4, 7]),
    ((), (content_pb.ROLE_BASH_EXECUTION, content_pb.ROLE_TOOL_RESULT), [5, 6]),
    ((entry_pb2.ENTRY_KIND_MESSAGE,), (content_pb.ROLE_USER,), [3]),
    ((entry_pb2.ENTRY_KIND_MIRROR,), (content_pb.ROLE_ASSISTANT,), []),
    ((entry_pb2.ENTRY_KIND_COMPACTION,), (), []),
]


@pytest.mark.parametrize(("kinds", "roles", "expected"), FILTERED)
async def test_ListEntries__by_kind_and_role_both_ways(
    session: Session,
    kinds: tuple[entry_pb2.EntryKind.ValueType, ...],
    roles: tuple[content_pb.Role.ValueType, ...],
    expected: list[int],
) -> None:
    await _mixed(session)
    assert seqs(await session.page(kinds=kinds, roles=roles)) == expected
    assert seqs(await session.page(before_seq=0, kinds=kinds, roles=roles)) == expected
    up = await session.page(kinds=kinds, roles=roles, page_size=1)
    down = await session.page(before_seq=0, kinds=kinds, roles=roles, page_size=1)
    assert (seqs(up), seqs(down)) == (expected[:1], expected[-1:])
    assert bool(up.next_page_token) == bool(down.next_page_token) == (len(expected) > 1)


async def test_ListEntries__unknown_kinds_and_roles_are_refused(session: Session) -> None:
    unspecified = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_UNSPECIFIED])
    unknown = entry_pb2.EntryFilter()
    unknown.roles.append(content_pb.Role.ValueType(99))
    for choice in (unspecified, unknown):
        request = pb.ListEntriesRequest(session_id=session.session_id, filter=choice)
        with refused(Reason.INVALID_REQUEST), use_token(session.client_token()):
            await session.service.peer.unary(session.service.stub.ListEntries, request, timeout_seconds=60)


class Following:
    """A FollowEntries stream, read answer by answer with a timeout."""

    def __init__(self, answers: AsyncIterator[pb.FollowEntriesResponse]) -> None:
        self.answers = answers
        self.read_seq = -1
        self.incarnation = ""

    async def next(self) -> list[int]:
        async with asyncio.timeout(SECONDS):
            news = await anext(self.answers)
        assert news.read_seq >= self.read_seq
        self.read_seq = news.read_seq
        self.incarnation = news.head.incarnation
        return [entry.seq for entry in news.entries]

    async def until(self, seq: int) -> list[int]:
        """Return everything received until all entries up to this seq have arrived."""
        seen: list[int] = []
        while self.read_seq < seq:
            seen += await self.next()
        return seen


@asynccontextmanager
async def following(
    session: Session,
    *,
    after_seq: int = 0,
    incarnation: str = "",
    choice: entry_pb2.EntryFilter | None = None,
    token: str = "",
    peer: Peer | None = None,
) -> AsyncIterator[Following]:
    request = pb.FollowEntriesRequest(
        session_id=session.session_id, after_seq=after_seq, incarnation=incarnation, filter=choice
    )
    with use_token(token or session.client_token()):
        source = peer or session.service.peer
        stub = TranscriptServiceStub(source.channel)
        answers = source.stream(stub.FollowEntries, request, timeout_seconds=3 * SECONDS)
        async with aclosing(answers):
            yield Following(answers)


async def test_FollowEntries__sends_present_entries_and_then_new_ones(session: Session) -> None:
    await session.append([user("a")])
    async with following(session) as follower:
        assert await follower.next() == [1, 2]
        for number in range(3, 9):
            await session.append([user(str(number))])
            assert await follower.next() == [number]


async def test_FollowEntries__sends_no_entry_appended_after_the_token_expired(session: Session) -> None:
    await session.append([user("while it is good")])
    token = session.service.client_minter.client_token(session.tenant_id, "tester", 5)
    async with following(session, token=token) as follower:
        assert await follower.next() == [1, 2]
        with refused(Reason.TOKEN_EXPIRED):
            await follower.next()
    await session.append([user("later")])
    async with following(session, after_seq=follower.read_seq, incarnation=follower.incarnation) as resumed:
        assert await resumed.next() == [3]


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the fallback for a lost notification."""
    monkeypatch.setattr(follow_entries, "_POLL_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_polls")
async def test_FollowEntries__sends_new_entries_at_once_without_polling(session: Session) -> None:
    async with following(session) as follower:
        await follower.next()
        for number in range(2, 42):
            await session.append([user(str(number))])
            assert await follower.until(number) == [number]


async def test_FollowEntries__resumes_at_its_position(session: Session) -> None:
    async with following(session) as follower:
        await session.append([user("a"), user("b")])
        await follower.until(3)
    await session.append([user("c"), user("d")])
    async with following(session, after_seq=follower.read_seq, incarnation=follower.incarnation) as resumed:
        assert await resumed.until(5) == [4, 5]
        await session.append([user("e")])
        assert await resumed.next() == [6]


async def test_FollowEntries__a_long_history_arrives_completely_and_once(session: Session) -> None:
    for start in range(0, 1000, 250):
        await session.append([user(str(start + number)) for number in range(250)])
    async with following(session) as follower:
        assert await follower.until(1001) == list(range(1, 1002))


async def test_FollowEntries__misses_nothing_beside_many_appends(session: Session) -> None:
    claim = await session.acquire(1)

    async def append_many() -> None:
        for _ in range(15):
            await session.append([assistant("a"), assistant("b")], claim=claim)

    async with following(session) as follower:
        writing = asyncio.gather(*(append_many() for _ in range(4)))
        assert await follower.until(121) == list(range(1, 122))
        await writing


async def test_FollowEntries__a_filter_skips_entries_and_moves_on(session: Session) -> None:
    choice = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MIRROR])
    async with following(session, choice=choice) as follower:
        assert await follower.next() == []
        await _mixed(session)
        assert await follower.next() == [8]
        assert follower.read_seq == 8


async def test_FollowEntries__ends_when_the_transcript_is_deleted(session: Session) -> None:
    async with following(session) as follower:
        await follower.next()
        await session.delete()
        with refused(Reason.NOT_FOUND):
            await follower.next()


async def test_FollowEntries__ends_when_the_transcript_is_created_again(session: Session) -> None:
    async with following(session) as follower:
        await follower.next()
        await session.create_anew()
        await session.append([user("other")])
        with refused(Reason.NOT_FOUND):
            await follower.next()
    async with following(session, after_seq=1, incarnation=follower.incarnation) as resumed:
        with refused(Reason.NOT_FOUND):
            await resumed.next()


async def test_FollowEntries__is_for_the_tenant_and_the_runs_own_session(session: Session) -> None:
    claim = await session.acquire(1)
    token = session.run_token(claim)
    async with following(session, token=token) as follower:
        assert await follower.next() == [1]
    sibling = session.sibling()
    await sibling.create()
    stranger = Session(session.service, f"{session.tenant_id}-x", session.session_id)
    for other, by in ((sibling, token), (stranger, stranger.client_token())):
        async with following(other, token=by) as follower:
            with refused(Reason.NOT_FOUND):
                await follower.next()


@pytest.mark.usefixtures("no_polls")
async def test_FollowEntries__sends_entries_appended_at_another_replica(
    service: Service, session: Session, keys: Path
) -> None:
    settings = TranscriptSettings(**shared_settings("transcript", keys), database_url=service.dsn.app)
    async with (
        served("transcript", settings, open_service) as target,
        caller_at(target, "transcript") as replica,
        following(session, peer=replica) as follower,
    ):
        await follower.next()
        for number in range(2, 22):
            await session.append([user(str(number))])
            assert await follower.until(number) == [number]


async def test_FollowEntries__many_followers_leave_connections_for_others(session: Session) -> None:
    """More followers than connections, all woken at once."""

    async def follow() -> list[int]:
        async with following(session) as follower:
            return await follower.until(6)

    followers = [asyncio.create_task(follow()) for _ in range(40)]
    for number in range(5):
        await session.append([user(str(number))])
    assert [text_of(entry) for entry in await session.entries(after_seq=5)] == ["4"]
    assert await asyncio.gather(*followers) == [list(range(1, 7))] * 40


async def test_ListEntries__pages_upwards(session: Session) -> None:
    await session.append([user(str(number)) for number in range(150)])
    first = await session.page()
    assert [entry.seq for entry in first.entries] == list(range(1, 101))
    assert first.head.seq == 151
    second = await session.page(after_seq=100)
    assert [entry.seq for entry in second.entries] == list(range(101, 152))
    assert len((await session.page(after_seq=10, page_size=7)).entries) == 7
    assert not (await session.page(after_seq=151)).entries


async def test_ListEntries__a_page_of_large_entries_ends_early_but_never_empty(session: Session) -> None:
    for _ in range(3):
        sizes = (2_000_000, 2_000_000, 3_000_000)
        await session.append([with_image("look", bytes(size)) for size in sizes])
    seen: list[int] = []
    while len(seen) < 10:
        page = await session.page(after_seq=seen[-1] if seen else 0, page_size=1000)
        assert page.entries
        seen += [entry.seq for entry in page.entries]
    assert seen == list(range(1, 11))
    assert len((await session.page(after_seq=1, page_size=1000)).entries) == 2


async def test_ListEntries__unknown_session(service: Service) -> None:
    with refused(Reason.NOT_FOUND):
        await service.session().page()
