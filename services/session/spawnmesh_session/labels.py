"""What the sagas and the jobs behind them say about drafts, under one key whoever says it."""

from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_SUPERSEDED, EntryBody, Label


def withdrawal_of(entry_id: str) -> tuple[str, list[EntryBody]]:
    """The key and the entries of an append that says of a draft, which may be called final, that it is not the answer."""
    return f"withdraw:v1:{entry_id}", [EntryBody(label=Label(entry_id=entry_id, kind=LABEL_KIND_SUPERSEDED))]
