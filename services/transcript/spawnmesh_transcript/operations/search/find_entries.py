"""Find entries by words or by a pattern."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.limiter import FairLimiter

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import EntryKind
from spawnmesh_transcript.domain.patterns import Finder, compile_pattern
from spawnmesh_transcript.domain.refusals import search_refused
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.words import (
    MAX_TERMS,
    Term,
    Word,
    find_first,
    parse_words,
    parts_of,
    words_of,
)
from spawnmesh_transcript.operations.rehydration import StoredBody, rehydrate_bodies
from spawnmesh_transcript.operations.search.index import SearchIndex
from spawnmesh_transcript.operations.search.texts import FoundText, texts_in
from spawnmesh_transcript.operations.search.threads import SearchThreads, WorkBudget
from spawnmesh_transcript.store import search as search_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.search import FoundEntry, SearchRange

PATTERN_ENTRY_LIMIT = 10_000
PATTERN_BYTE_LIMIT = 16 * 1024 * 1024

WORDS_MAX_BYTES = 4 * 1024 * 1024
"""Complete bodies in one page of hits by words. One entry of any size is always read."""

CONCURRENT_SEARCHES = 4
"""Searches of a process that have entries in memory, up to PATTERN_BYTE_LIMIT each."""

_INDEX_SECONDS = 5.0
_WORDS_SECONDS = 4.0
_PATTERN_SECONDS = 4.0
_WORDS_AT_A_TIME = 1_000  # Between two checks of the budget.
_AROUND_CHARS = 80
_MATCH_CHARS = 240

_Locate = Callable[[Sequence[FoundText]], "_Match | None"]
"""Return where the texts of one entry match first."""

_Find = Callable[[Key, SearchRange, int], Awaitable[tuple["list[Hit]", bool]]]
"""Return up to so many hits in a range of a transcript, and whether the page must end before its
next hit.
"""


@dataclass(frozen=True, slots=True)
class Search:
    """A search: words or a pattern, one of them empty, and the range to search."""

    words: str
    pattern: str
    within: SearchRange
    with_descendants: bool
    page_size: int
    resume_session_id: str = ""
    """The session to resume in; the sessions before it have been searched."""
    resume_before_seq: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that matches, and where it matches first."""

    session_id: str
    entry_id: str
    seq: int
    kind: EntryKind
    create_time: datetime
    path: str
    byte_offset: int
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchDependencies:
    """The resources that searches share."""

    database: Database
    blobs: BlobStore
    index: SearchIndex
    threads: SearchThreads
    limiter: FairLimiter


@dataclass(frozen=True, slots=True)
class _Match:
    """A text, and the characters of it that match."""

    text: FoundText
    start: int
    end: int


async def find_entries(deps: SearchDependencies, key: Key, search: Search) -> tuple[list[Hit], bool]:
    """Return the hits of one page, and whether there may be more.

    Raises SEARCH_REFUSED, NOT_FOUND, DEPENDENCY_UNAVAILABLE while a long transcript is indexed for
    the first time, and what `rehydrate_bodies` raises.
    """
    find = await _by_pattern(deps, search) if search.pattern else _by_words(deps, search)
    async with deps.database.transaction(key.tenant_id) as connection:
        await transcript_store.get_transcript(connection, key)
        family = [key.session_id]
        if search.with_descendants:
            family = await transcript_store.list_family(connection, key)
    hits: list[Hit] = []
    for session_id in family:
        within = search.within
        if search.resume_session_id:  # It may be deleted by now; the sessions after it are not.
            if _family_order(session_id, key) < _family_order(search.resume_session_id, key):
                continue
            if session_id == search.resume_session_id:
                within = replace(within, before_seq=min(within.before_seq, search.resume_before_seq))
        try:
            found, is_cut = await find(
                Key(key.tenant_id, session_id), within, search.page_size + 1 - len(hits)
            )
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND or session_id == key.session_id:
                raise
            continue  # A descendant may be deleted during the search.
        hits += found
        if len(hits) > search.page_size:
            return hits[: search.page_size], True
        if is_cut and hits:
            return hits, True
    return hits, False


def _family_order(session_id: str, key: Key) -> tuple[bool, str]:
    """Order a family: the session first, then its descendants by their ids."""
    return session_id != key.session_id, session_id


def _by_words(deps: SearchDependencies, search: Search) -> _Find:
    terms = parse_words(search.words)
    wanted = [term for term in terms if not term.is_excluded]
    if not wanted:
        raise search_refused("NO_WORDS", "there is no word to look for: give one with a letter or a digit")
    if len(terms) > MAX_TERMS:
        raise search_refused(
            "WORDS", f"there are more than {MAX_TERMS} words to look for", term_limit=MAX_TERMS
        )
    unsure = [term for term in terms if term.needs_text]
    deadline = monotonic_seconds() + _INDEX_SECONDS
    budget = WorkBudget(_WORDS_SECONDS)
    locate = partial(_match_terms, terms=wanted, unsure=unsure, budget=budget)

    async def find_page(key: Key, within: SearchRange, limit: int) -> tuple[list[Hit], int | None, bool]:
        """Return the hits among the next entries of the index, the seq to resume before, and
        whether the page is full.
        """
        async with deps.limiter.hold(key.tenant_id):
            async with deps.database.transaction(key.tenant_id) as connection:
                entries, has_more = await search_store.search_by_words(
                    connection,
                    key,
                    within,
                    wanted=[part.tsquery() for term in wanted for part in parts_of(term)],
                    excluded=[term.tsquery() for term in terms if term.is_excluded and not term.needs_text],
                    limit=limit,
                    max_bytes=WORDS_MAX_BYTES,
                )
            hits = await _hits_among(deps, key, entries, locate, limit, budget)
        can_resume = has_more or len(entries) == limit
        return hits, entries[-1].seq if can_resume else None, has_more

    async def find(key: Key, within: SearchRange, limit: int) -> tuple[list[Hit], bool]:
        await deps.index.index_up_to_head(key, deadline=deadline)
        hits: list[Hit] = []
        while True:
            page, before_seq, is_cut = await find_page(key, within, limit - len(hits))
            hits += page
            if before_seq is None or len(hits) == limit or (is_cut and hits):
                return hits, is_cut
            # Some entries of the index did not match.
            within = replace(within, before_seq=before_seq)

    return find


async def _by_pattern(deps: SearchDependencies, search: Search) -> _Find:
    # Of all sessions of the call.
    entries_left, bytes_left = PATTERN_ENTRY_LIMIT, PATTERN_BYTE_LIMIT
    budget = WorkBudget(_PATTERN_SECONDS)
    finder = await deps.threads.run_in_thread(budget, lambda: compile_pattern(search.pattern))
    locate = partial(_match_pattern, find=finder, budget=budget)

    async def find(key: Key, within: SearchRange, limit: int) -> tuple[list[Hit], bool]:
        nonlocal entries_left, bytes_left
        async with deps.limiter.hold(key.tenant_id):
            async with deps.database.transaction(key.tenant_id) as connection:
                await snapshots.begin_snapshot(connection)
                entry_count, byte_count = await search_store.measure_window(
                    connection, key, within, limit=entries_left + 1
                )
                entries_left -= entry_count
                bytes_left -= byte_count
                if entries_left < 0 or bytes_left < 0:
                    raise _window_refused()
                entries = await search_store.read_window(connection, key, within)
            return await _hits_among(deps, key, entries, locate, limit, budget), False

    return find


def _window_refused() -> MeshError:
    return search_refused(
        "WINDOW",
        f"a pattern is run over {PATTERN_ENTRY_LIMIT} entries or {PATTERN_BYTE_LIMIT} bytes at most: "
        "give a narrower range of seqs, or fewer sessions",
        pattern_entry_limit=PATTERN_ENTRY_LIMIT,
        pattern_byte_limit=PATTERN_BYTE_LIMIT,
    )


async def _hits_among(
    deps: SearchDependencies,
    key: Key,
    entries: Sequence[FoundEntry],
    locate: _Locate,
    limit: int,
    budget: WorkBudget,
) -> list[Hit]:
    if not entries:
        return []
    stored = [StoredBody(entry.seq, entry.body, entry.dropped_bytes) for entry in entries]
    bodies = await rehydrate_bodies(deps.database, deps.blobs, key, stored)
    complete = [replace(entry, body=bodies.get(entry.seq, entry.body)) for entry in entries]
    return await deps.threads.run_in_thread(
        budget, lambda: _locate_hits(key, complete, locate, limit, budget)
    )


def _locate_hits(
    key: Key, entries: Sequence[FoundEntry], locate: _Locate, limit: int, budget: WorkBudget
) -> list[Hit]:
    hits: list[Hit] = []
    for entry in entries:
        if len(hits) >= limit or budget.is_abandoned:
            break
        match = locate(texts_in(pb.EntryBody.FromString(entry.body)))
        if match is None:
            continue
        hits.append(
            Hit(
                key.session_id,
                entry.entry_id,
                entry.seq,
                EntryKind(entry.kind),
                entry.create_time,
                match.text.path,
                match.text.byte_offset(match.start),
                _snippet(match),
            )
        )
    return hits


def _match_terms(
    texts: Sequence[FoundText], terms: Sequence[Term], unsure: Sequence[Term], budget: WorkBudget
) -> _Match | None:
    """Return where the first of the terms stands.

    Return the beginning if no term can be located, or not in time: the index knows that the entry
    matches. `unsure` are the terms for which the index finds too much. The texts decide: return
    None if a wanted one is missing or an excluded one is there. Raises SEARCH_REFUSED if the budget
    does not suffice for that.
    """
    if any(_has_term(texts, term, budget) is term.is_excluded for term in unsure):
        return None
    for text in texts:
        if found := find_first(_within_budget(words_of(text.text), budget), terms):
            return _Match(text, *found)
    return _Match(texts[0], 0, 0) if texts else None


def _has_term(texts: Sequence[FoundText], term: Term, budget: WorkBudget) -> bool:
    for text in texts:
        if find_first(_within_budget(words_of(text.text), budget), [term]):
            return True
    if budget.is_spent():
        raise search_refused(
            "TIME",
            f"the words took longer than the {_WORDS_SECONDS:.0f} seconds that they have: "
            "make phrases shorter, or give a narrower range of seqs",
            second_limit=round(_WORDS_SECONDS),
        )
    return False


def _within_budget(words: Iterator[Word], budget: WorkBudget) -> Iterator[Word]:
    while not budget.is_spent() and (batch := list(islice(words, _WORDS_AT_A_TIME))):
        yield from batch


def _match_pattern(texts: Sequence[FoundText], find: Finder, budget: WorkBudget) -> _Match | None:
    for text in texts:
        if budget.is_spent():
            raise search_refused(
                "TIME",
                f"the pattern took longer than the {_PATTERN_SECONDS:.0f} seconds that it has: "
                "make it simpler, or give a narrower range of seqs",
                second_limit=round(_PATTERN_SECONDS),
            )
        if found := find(text.text):
            return _Match(text, *found)
    return None


def _snippet(match: _Match) -> str:
    text = match.text.text
    start = max(0, match.start - _AROUND_CHARS)
    end = min(len(text), min(match.end, match.start + _MATCH_CHARS) + _AROUND_CHARS)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
