"""The texts of stored transcript entries."""

from collections import Counter
from collections.abc import Iterator

from spawnmesh.content.v1.message_pb2 import ROLE_USER, Message
from spawnmesh.transcript.v1.entry_pb2 import EntryBody

from tests.chaos.random_faults.facts import Facts, Row

SessionText = tuple[str, str]
"""A session and the text of an entry of it."""


def message_of(row: Row) -> Message:
    """Return the message of a stored entry; an empty one if the entry has none."""
    return EntryBody.FromString(bytes(row["body"])).message


def text_of(row: Row) -> str:
    """Return the text of a stored entry's message."""
    return "".join(block.text.text for block in message_of(row).content)


def texts_of_users(facts: Facts) -> Counter[SessionText]:
    """Return how often each text is a user's message in each session's transcript."""
    return Counter((row["session_id"], text) for row, text in _user_messages(facts.rows("entries")))


def _user_messages(rows: list[Row]) -> Iterator[tuple[Row, str]]:
    for row in rows:
        message = message_of(row)
        if message.role == ROLE_USER:
            yield row, "".join(block.text.text for block in message.content)
