"""Finds entries by what they say."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

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
from spawnmesh_transcript.domain.words import MAX_TERMS, Term, find_term, parse_words, parts_of, words_of
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.search_index import index_up_to_head
from spawnmesh_transcript.search_store import Range
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.texts import FoundText, texts_in
from spawnmesh_transcript.whole import StoredBody, whole_bodies

PATTERN_ENTRY_LIMIT = 10_000
PATTERN_BYTE_LIMIT = 16 * 1024 * 1024

_INDEX_SECONDS = 5.0
_AROUND_CHARS = 80
_MATCH_CHARS = 240

Locate = Callable[[Sequence[FoundText]], "Place | None"]
_Find = Callable[[Key, Range, int], Awaitable["list[Hit]"]]


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


async def search_entries(database: Database, payloads: Payloads, key: Key, search: Search) -> tuple[list[Hit], bool]:
    """The hits of one page, and whether there may be more.

    Raises SEARCH_REFUSED, NOT_FOUND, DEPENDENCY_UNAVAILABLE while a long transcript is read for the first time, and what making entries
    whole raises.
    """
    find = _by_pattern(database, payloads, search) if search.pattern else _by_words(database, payloads, search)
    async with database.transaction(key.tenant_id) as connection:
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
            hits += await find(Key(key.tenant_id, session_id), within, search.page_size + 1 - len(hits))
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND or session_id == key.session_id:
                raise  # One that descends from it may go while it is searched.
        if len(hits) > search.page_size:
            return hits[: search.page_size], True
    return hits, False


def _place_in_family(session_id: str, key: Key) -> tuple[bool, str]:
    """By which a family is in order: the session first, then those that descend from it by their ids."""
    return session_id != key.session_id, session_id


def _by_words(database: Database, payloads: Payloads, search: Search) -> _Find:
    terms = parse_words(search.words)
    wanted = [term for term in terms if not term.is_excluded]
    if not wanted:
        raise search_refused("NO_WORDS", "there is no word to look for: give one with a letter or a digit")
    if len(terms) > MAX_TERMS:
        raise search_refused("WORDS", f"there are more than {MAX_TERMS} words to look for", term_limit=MAX_TERMS)
    give_up_time = monotonic_seconds() + _INDEX_SECONDS

    async def find(key: Key, within: Range, limit: int) -> list[Hit]:
        await index_up_to_head(database, payloads, key, give_up_time=give_up_time)
        async with database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            rows = await search_store.search_by_words(
                connection,
                key,
                within,
                wanted=[part.tsquery() for term in wanted for part in parts_of(term)],
                excluded=[term.tsquery() for term in terms if term.is_excluded],
                limit=limit,
            )
        whole = await _whole(database, payloads, key, rows)
        return await asyncio.to_thread(_hits, key, whole, lambda texts: _place_of_terms(texts, wanted), limit)

    return find


def _by_pattern(database: Database, payloads: Payloads, search: Search) -> _Find:
    finder = compile_pattern(search.pattern)
    entries_left, bytes_left = PATTERN_ENTRY_LIMIT, PATTERN_BYTE_LIMIT  # For all sessions of the call together.

    async def find(key: Key, within: Range, limit: int) -> list[Hit]:
        nonlocal entries_left, bytes_left
        async with database.transaction(key.tenant_id) as connection:
            await store.begin_snapshot(connection)
            entry_count, byte_count = await search_store.measure_window(connection, key, within, limit=entries_left + 1)
            entries_left -= entry_count
            bytes_left -= byte_count
            if entries_left < 0 or bytes_left < 0:
                raise search_refused(
                    "WINDOW",
                    f"a pattern is run over {PATTERN_ENTRY_LIMIT} entries or {PATTERN_BYTE_LIMIT} bytes at most: "
                    "give a narrower range of seqs, or fewer sessions",
                    pattern_entry_limit=PATTERN_ENTRY_LIMIT,
                    pattern_byte_limit=PATTERN_BYTE_LIMIT,
                )
            rows = await search_store.read_window(connection, key, within)
        whole = await _whole(database, payloads, key, rows)
        return await asyncio.to_thread(_hits, key, whole, lambda texts: _place_of_pattern(texts, finder), limit)

    return find


async def _whole(database: Database, payloads: Payloads, key: Key, rows: Sequence[DictRow]) -> list[DictRow]:
    stored = [StoredBody(row["seq"], row["body"], row["dropped_bytes"]) for row in rows]
    bodies = await whole_bodies(database, payloads, key, stored)
    return [{**row, "body": bodies.get(row["seq"], row["body"])} for row in rows] if bodies else list(rows)


def _hits(key: Key, rows: Sequence[DictRow], locate: Locate, limit: int) -> list[Hit]:
    hits: list[Hit] = []
    for row in rows:
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
        if len(hits) >= limit:
            break
    return hits


def _place_of_terms(texts: Sequence[FoundText], terms: Sequence[Term]) -> Place | None:
    """The first of the terms that can be shown; the beginning where none can."""
    for text in texts:
        words = list(words_of(text.text))
        for term in terms:
            if found := find_term(words, term):
                return Place(text, *found)
    return Place(texts[0], 0, 0) if texts else None


def _place_of_pattern(texts: Sequence[FoundText], find: Finder) -> Place | None:
    for text in texts:
        if found := find(text.text):
            return Place(text, *found)
    return None


def _snippet(place: Place) -> str:
    text = place.text.text
    start = max(0, place.start - _AROUND_CHARS)
    end = min(len(text), min(place.end, place.start + _MATCH_CHARS) + _AROUND_CHARS)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
