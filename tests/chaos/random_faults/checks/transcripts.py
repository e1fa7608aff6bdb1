"""I4: the entries of a transcript are dense, and each hash covers its predecessor."""

from itertools import groupby
from types import SimpleNamespace

from spawnmesh_transcript.domain.chain import chain_hash

from tests.chaos.random_faults.facts import Facts, Row


def check(facts: Facts) -> list[str]:
    """Compute every chain again."""
    heads = {(row["tenant_id"], row["session_id"]): row for row in facts.rows("transcripts")}
    found = []
    seen = set()
    for key, rows in groupby(facts.rows("entries"), key=lambda row: (row["tenant_id"], row["session_id"])):
        seen.add(key)
        found += _broken(key[1], list(rows), heads.get(key))
    found += [f"{key[1]} has no entries" for key in heads if key not in seen]
    return found


def _broken(session_id: str, entries: list[Row], head: Row | None) -> list[str]:
    seqs = [row["seq"] for row in entries]
    if seqs != list(range(1, len(seqs) + 1)):
        return [f"{session_id} has the seqs {seqs}"]
    chain, parent = b"", ""
    for row in entries:
        if row["parent_entry_id"] != parent:
            return [f"entry {row['seq']} of {session_id} has another parent than its predecessor"]
        chain = (
            row["chain_hash"]
            if row["dropped_bytes"]
            else chain_hash(chain, SimpleNamespace(**row), bytes(row["body"]))
        )
        if chain != bytes(row["chain_hash"]):
            return [f"entry {row['seq']} of {session_id} has a hash that does not chain"]
        parent = row["entry_id"]
    if head is None:
        return [f"{session_id} has entries and no transcript"]
    if (head["seq"], bytes(head["chain_hash"])) != (seqs[-1], chain):
        return [f"the head of {session_id} is at {head['seq']}, and its newest entry is {seqs[-1]}"]
    return []
