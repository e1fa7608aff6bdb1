"""The calls of the statement that appends: their parameters, and the results from their rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
from psycopg.types.json import Jsonb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.rows import Row

from spawnmesh_transcript.domain.appends import Append, AppendOutcome, AppendResult, ends_of
from spawnmesh_transcript.domain.entries import TURN_KINDS, Label, NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store.rows import head_of


class Calls:
    """Calls, each with the ids of its entries, and their bodies one behind the other."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._bodies: list[bytes] = []
        self._first_byte = 1

    def add(
        self, transcript: Key, entries: Sequence[NewEntry], writer: Writer, **more: Any
    ) -> tuple[str, ...]:
        """Add a call and return the ids of its entries.

        It omits empty values, because the server parses every word.
        """
        described = self._describe(entries)
        call: dict[str, Any] = {
            "session_id": transcript.session_id,
            "service": writer.service,
            "client": writer.client,
            "entries": described,
            "entry_count": len(entries),
            "token_count": sum(entry.token_count for entry in entries),
            "byte_count": sum(len(entry.body) for entry in entries),
            "turn_count": sum(entry.kind in TURN_KINDS for entry in entries),
            **more,
        }
        if writer.claim:
            call["run_id"], call["epoch"] = writer.claim.run_id, writer.claim.epoch
        call |= _references(entries, described)
        self._calls.append(call)
        return tuple(one["entry_id"] for one in described)

    def add_append(self, append: Append) -> tuple[str, ...]:
        """Add a call of one append as `add` does."""
        more: dict[str, Any] = {}
        if append.fence:
            more["fence_incarnation"], more["fence_seq"] = append.fence.incarnation, append.fence.seq
            more["fence_hash"] = append.fence.chain_hash.hex()
        if append.releases_writer:
            more["releases"] = True
        return self.add(
            append.key,
            append.entries,
            append.writer,
            settings_version=append.settings_version,
            key=append.request_id,
            hash=append.content_hash.hex(),
            **more,
        )

    def add_chained(self, appends: Sequence[Append]) -> tuple[str, ...]:
        """Add a call of several appends that can share it, as `add` does."""
        first, ends = appends[0], ends_of(appends)
        return self.add(
            first.key,
            [entry for append in appends for entry in append.entries],
            first.writer,
            settings_version=first.settings_version,
            keys=[append.request_id for append in appends],
            hashes=[append.content_hash.hex() for append in appends],
            first_places=[0, *ends[:-1]],
            last_places=[end - 1 for end in ends],
        )

    def parameters(self, tenant_id: str) -> dict[str, Any]:
        """Return the parameters of the statement. Raises ValueError for a body of another size."""
        bodies = b"".join(self._bodies)
        if len(bodies) != self._first_byte - 1:
            raise ValueError("the bodies have other sizes than they say")
        return {"tenant_id": tenant_id, "calls": Jsonb(self._calls, orjson.dumps), "bodies": bodies}

    def _describe(self, entries: Sequence[NewEntry]) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        previous_id = ""
        for place, entry in enumerate(entries):
            one: dict[str, Any] = {
                "place": place,
                "entry_id": entry.entry_id or new_id(IdKind.ENTRY),
                "kind": entry.kind,
                "token_count": entry.token_count,
                "token_vocabulary": entry.token_vocabulary,
                "first_byte": self._first_byte,
                "body_size": len(entry.body),
            }
            if entry.role:
                one["role"] = entry.role
            if parent_id := entry.parent_entry_id or previous_id:
                one["parent_entry_id"] = parent_id
            if entry.calls:
                one["calls"] = entry.calls
            if entry.answers:
                one["answers"] = entry.answers
            if entry.is_synthetic:
                one["is_synthetic"] = True
            if entry.label:
                one["label"] = entry.label
                one["target_entry_id"] = entry.target_entry_id
                if entry.target_entry_id in places:
                    one["target_place"] = places[entry.target_entry_id]
            self._bodies.append(entry.body)
            self._first_byte += len(entry.body)
            previous_id = one["entry_id"]
            places[previous_id] = place
            described.append(one)
        return described


def _references(entries: Sequence[NewEntry], described: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a call says about the entries that its own refer to and supersede.

    The own ones are counted here; the database looks up the others, and knows whether one was
    superseded before.
    """
    own_ids = {one["entry_id"] for one in described}
    target_ids = {entry.target_entry_id for entry in entries if entry.target_entry_id} - own_ids
    marks = [one for one in described if one.get("label") is Label.SUPERSEDED]
    own = {one["target_place"] for one in marks if "target_place" in one}
    superseded_ids = {one["target_entry_id"] for one in marks} & target_ids
    references: dict[str, Any] = {}
    if target_ids:
        references["target_ids"] = sorted(target_ids)
    if superseded_ids:
        references["superseded_ids"] = sorted(superseded_ids)
    if own:
        references["superseded_turn_count"] = sum(entries[place].kind in TURN_KINDS for place in own)
    return references


def result_of(append: Append, row: Row, entry_ids: tuple[str, ...]) -> AppendResult:
    """Return the result of an append that has a call of its own."""
    head = head_of(row)
    return AppendResult(AppendOutcome.APPENDED, head, head.seq - len(append.entries) + 1, entry_ids)


def chained_results(
    appends: Sequence[Append], row: Row, entry_ids: tuple[str, ...]
) -> Iterable[AppendResult]:
    """Return the results of the appends of one call: each has the head that it made."""
    head, hashes = head_of(row), row["chain_hashes"]
    seq_before = head.seq - len(entry_ids)
    for begin, end in pairwise((0, *ends_of(appends))):
        own = replace(head, seq=seq_before + end, chain_hash=hashes[end - 1])
        yield AppendResult(AppendOutcome.APPENDED, own, seq_before + begin + 1, entry_ids[begin:end])
