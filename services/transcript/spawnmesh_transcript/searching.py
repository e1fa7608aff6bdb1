"""Finds entries by what they say."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice

from psycopg.rows import DictRow
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database

from spawnmesh_transcript import search_store, store
from spawnmesh_transcript.domain.entries import EntryKind
from spawnmesh_transcript.domain.patterns import Finder, compile_pattern
from spawnmesh_transcript.domain.refusals import search_refused
from spawnmesh_transcript.domain.words import MAX_TERMS, Term, Word, find_first, parse_words, parts_of, words_of
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.search_index import SearchIndex
from spawnmesh_transcript.search_store import Range
from spawnmesh_transcript.search_threads import SearchThreads, Turns, WorkTime
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.texts import FoundText, texts_in
from spawnmesh_transcript.whole import StoredBody, whole_bodies

PATTERN_ENTRY_LIMIT = 10_000
PATTERN_BYTE_LIMIT = 16 * 1024 * 1024

WORDS_MAX_BYTES = 4 * 1024 * 1024
"""Whole bodies in one page of hits by words, and one entry of any size at least."""

TURNS = 4
"""Searches of a process that have entries in memory, up to PATTERN_BYTE_LIMIT each."""

_INDEX_SECONDS = 5.0
_WORDS_SECONDS = 4.0
_PATTERN_SECONDS = 4.0
_WORDS_AT_A_TIME = 1_000  # Between two looks at the time.
_AROUND_CHARS = 80
_MATCH_CHARS = 240

Locate = Callable[[Sequence[FoundText]], "Place | None"]
_Find = Callable[[Key, Range, int], Awaitable[tuple["list[Hit]", bool]]]
"""Up to so many hits in a range of a transcript, and whether there are more that one page should not have."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for and where: words or a pattern, one of them empty."""

    words: str
    pattern: str
    within: Range
    with_descendants: bool
    page_size: int
    resume_session_id: str = ""
    """The session to go on in; sessions before it have been searched."""
    resume_before_seq: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Which text, and between which characters of it."""

    text: FoundText
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that says it, and where it does first."""

    session_id: str
    entry_id: str
    seq: int
    kind: EntryKind
    create_time: datetime
    path: str
    byte_offset: int
    snippet: str


@dataclass(frozen=True, slots=True)
class Means:
    """What searches are made with."""

    database: Database
    payloads: Payloads
    index: SearchIndex
    threads: SearchThreads
    turns: Turns


async def search_entries(means: Means, key: Key, search: Search) -> tuple[list[Hit], bool]:
    """The hits of one page, and whether there may be more.

    Raises SEARCH_REFUSED, NOT_FOUND, DEPENDENCY_UNAVAILABLE while a long transcript is read for the first time, and what making entries
    whole raises.
    """
    find = await _by_pattern(means, search) if search.pattern else _by_words(means, search)
    async with means.database.transaction(key.tenant_id) as connection:
        if await store.read_transcript(connection, key) is None:
            raise not_found("transcript", key.session_id)
        family = [key.session_id]
        if search.with_descendants:
            await store.keep_index_order(connection)
            family = await search_store.family_of(connection, key)
    hits: list[Hit] = []
    for session_id in family:
        within = search.within
        if search.resume_session_id:  # Which may be gone meanwhile; those behind it are not.
            if _place_in_family(session_id, key) < _place_in_family(search.resume_session_id, key):
                continue
            if session_id == search.resume_session_id:
                within = replace(within, before_seq=min(within.before_seq, search.resume_before_seq))
        try:
            found, is_cut = await find(Key(key.tenant_id, session_id), within, search.page_size + 1 - len(hits))
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND or session_id == key.session_id:
                raise
            continue  # One that descends from it may go while it is searched.
        hits += found
        if len(hits) > search.page_size:
            return hits[: search.page_size], True
        if is_cut and hits:
            return hits, True
    return hits, False


def _place_in_family(session_id: str, key: Key) -> tuple[bool, str]:
    """By which a family is in order: the session first, then those that descend from it by their ids."""
    return session_id != key.session_id, session_id


def _by_words(means: Means, search: Search) -> _Find:
    terms = parse_words(search.words)
    wanted = [term for term in terms if not term.is_excluded]
    if not wanted:
        raise search_refused("NO_WORDS", "there is no word to look for: give one with a letter or a digit")
    if len(terms) > MAX_TERMS:
        raise search_refused("WORDS", f"there are more than {MAX_TERMS} words to look for", term_limit=MAX_TERMS)
    unsure = [term for term in terms if term.needs_text]
    give_up_time = monotonic_seconds() + _INDEX_SECONDS
    time = WorkTime(_WORDS_SECONDS)
    locate = partial(_place_of_terms, terms=wanted, unsure=unsure, time=time)

    async def find_some(key: Key, within: Range, limit: int) -> tuple[list[Hit], int | None, bool]:
        """Up to so many hits among as many entries of the index, where it goes on behind them, and whether that is for another page."""
        async with means.turns.of(key.tenant_id):
            async with means.database.transaction(key.tenant_id) as connection:
                await store.keep_index_order(connection)
                rows, has_more = await search_store.search_by_words(
                    connection,
                    key,
                    within,
                    wanted=[part.tsquery() for term in wanted for part in parts_of(term)],
                    excluded=[term.tsquery() for term in terms if term.is_excluded and not term.needs_text],
                    limit=limit,
                    max_bytes=WORDS_MAX_BYTES,
                )
            hits = await _located(means, key, rows, locate, limit, time)
        goes_on = has_more or len(rows) == limit
        return hits, rows[-1]["seq"] if goes_on else None, has_more

    async def find(key: Key, within: Range, limit: int) -> tuple[list[Hit], bool]:
        await means.index.read_up_to_head(key, give_up_time=give_up_time)
        hits: list[Hit] = []
        while True:
            some, before_seq, is_cut = await find_some(key, within, limit - len(hits))
            hits += some
            if before_seq is None or len(hits) == limit or (is_cut and hits):
                return hits, is_cut
            within = replace(within, before_seq=before_seq)  # Entries of the index were none of the question.

    return find


async def _by_pattern(means: Means, search: Search) -> _Find:
    entries_left, bytes_left = PATTERN_ENTRY_LIMIT, PATTERN_BYTE_LIMIT  # For all sessions of the call together.
    time = WorkTime(_PATTERN_SECONDS)
    finder = await means.threads.run(time, lambda: compile_pattern(search.pattern))

    async def find(key: Key, within: Range, limit: int) -> tuple[list[Hit], bool]:
        nonlocal entries_left, bytes_left
        async with means.turns.of(key.tenant_id):
            async with means.database.transaction(key.tenant_id) as connection:
                await store.begin_snapshot(connection)
                entry_count, byte_count = await search_store.measure_window(
                    connection, key, within, limit=entries_left + 1
                )
                entries_left -= entry_count
                bytes_left -= byte_count
                if entries_left < 0 or bytes_left < 0:
                    raise _window_refused()
                rows = await search_store.read_window(connection, key, within)
            locate = partial(_place_of_pattern, find=finder, time=time)
            return await _located(means, key, rows, locate, limit, time), False

    return find


def _window_refused() -> MeshError:
    return search_refused(
        "WINDOW",
        f"a pattern is run over {PATTERN_ENTRY_LIMIT} entries or {PATTERN_BYTE_LIMIT} bytes at most: "
        "give a narrower range of seqs, or fewer sessions",
        pattern_entry_limit=PATTERN_ENTRY_LIMIT,
        pattern_byte_limit=PATTERN_BYTE_LIMIT,
    )


async def _located(
    means: Means, key: Key, rows: Sequence[DictRow], locate: Locate, limit: int, time: WorkTime
) -> list[Hit]:
    if not rows:
        return []
    stored = [StoredBody(row["seq"], row["body"], row["dropped_bytes"]) for row in rows]
    bodies = await whole_bodies(means.database, means.payloads, key, stored)
    whole = [{**row, "body": bodies.get(row["seq"], row["body"])} for row in rows] if bodies else rows
    return await means.threads.run(time, lambda: _hits(key, whole, locate, limit, time))


def _hits(key: Key, rows: Sequence[DictRow], locate: Locate, limit: int, time: WorkTime) -> list[Hit]:
    hits: list[Hit] = []
    for row in rows:
        if len(hits) >= limit or time.is_abandoned:
            break
        place = locate(texts_in(pb.EntryBody.FromString(row["body"])))
        if place is None:
            continue
        hits.append(
            Hit(
                key.session_id,
                row["entry_id"],
                row["seq"],
                EntryKind(row["kind"]),
                row["create_time"],
                place.text.path,
                place.text.byte_offset(place.start),
                _snippet(place),
            )
        )
    return hits


def _place_of_terms(
    texts: Sequence[FoundText], terms: Sequence[Term], unsure: Sequence[Term], time: WorkTime
) -> Place | None:
    """The first of the terms that can be shown; the beginning where none can, or not in time: the index is sure of the entry.

    Of the terms that it is unsure of the texts are asked: None where they do not have one, or have one that is excluded. Raises SEARCH_REFUSED
    where that is not known in time.
    """
    if any(_is_there(texts, term, time) is term.is_excluded for term in unsure):
        return None
    for text in texts:
        if found := find_first(_while_there_is_time(words_of(text.text), time), terms):
            return Place(text, *found)
    return Place(texts[0], 0, 0) if texts else None


def _is_there(texts: Sequence[FoundText], term: Term, time: WorkTime) -> bool:
    for text in texts:
        if find_first(_while_there_is_time(words_of(text.text), time), [term]):
            return True
    if time.is_over():
        raise search_refused(
            "TIME",
            f"the words took longer than the {_WORDS_SECONDS:.0f} seconds that they have: make phrases shorter, "
            "or give a narrower range of seqs",
            second_limit=round(_WORDS_SECONDS),
        )
    return False


def _while_there_is_time(words: Iterator[Word], time: WorkTime) -> Iterator[Word]:
    while not time.is_over() and (some := list(islice(words, _WORDS_AT_A_TIME))):
        yield from some


def _place_of_pattern(texts: Sequence[FoundText], find: Finder, time: WorkTime) -> Place | None:
    for text in texts:
        if time.is_over():
            raise search_refused(
                "TIME",
                f"the pattern took longer than the {_PATTERN_SECONDS:.0f} seconds that it has: make it simpler, "
                "or give a narrower range of seqs",
                second_limit=round(_PATTERN_SECONDS),
            )
        if found := find(text.text):
            return Place(text, *found)
    return None


def _snippet(place: Place) -> str:
    text = place.text.text
    start = max(0, place.start - _AROUND_CHARS)
    end = min(len(text), min(place.end, place.start + _MATCH_CHARS) + _AROUND_CHARS)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
