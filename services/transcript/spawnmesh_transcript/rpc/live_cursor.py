"""Cursors of WatchTranscript: the transcript, and a position in its feed.

A cursor is no secret, and no signature keeps a caller from making one: it names a position in a
transcript that the caller may read anyway, and changes only what this caller is shown.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from spawnmesh_core.errors import invalid

from spawnmesh_transcript.domain.drafts import DraftId, OutputKind
from spawnmesh_transcript.domain.live_feed import FeedPosition, SentOutput

_NUMBERS = range(2**63)
_TEXT = re.compile(r"[\x20-\x7e]{1,128}")


def render_cursor(session_id: str, incarnation: str, position: FeedPosition) -> str:
    """Return the cursor of the position."""
    parts: list[object] = [session_id, incarnation, position.seq]
    if (draft := position.draft) is not None:
        parts += [draft.run_id, draft.epoch, draft.number]
        parts += [[one.size, one.digest.hex()] for one in position.sent]
    return urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def parse_cursor(cursor: str, session_id: str, after_seq: int) -> tuple[str, FeedPosition]:
    """Return the incarnation and the position of a cursor; without one, the position after the seq.

    Raises INVALID_REQUEST for a text that is no cursor of the session.
    """
    if not cursor:
        return "", FeedPosition(after_seq)
    try:
        parts = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        incarnation, position = _position_of(parts, session_id)
    except (ValueError, TypeError, RecursionError):
        raise invalid("cursor", f"is no cursor of WatchTranscript for {session_id}") from None
    return incarnation, position


def _position_of(parts: object, session_id: str) -> tuple[str, FeedPosition]:
    if not isinstance(parts, list) or parts[:1] != [session_id]:
        raise ValueError("another session")
    match parts[1:]:
        case [str(incarnation), int(seq)]:
            position = FeedPosition(_number(seq))
        case [str(incarnation), int(seq), str(run_id), int(epoch), int(number), *sent] if len(sent) == len(
            OutputKind
        ):
            draft = DraftId(_text(run_id), _number(epoch), _number(number))
            position = FeedPosition(_number(seq), draft, tuple(map(_sent, sent)))
        case _:
            raise ValueError("another shape")
    return _text(incarnation), position


def _sent(value: object) -> SentOutput:
    match value:
        case [int(size), str(digest)]:
            return SentOutput(_number(size), bytes.fromhex(digest))
    raise ValueError("another output")


def _number(value: int) -> int:
    if isinstance(value, bool) or value not in _NUMBERS:
        raise ValueError("another number")
    return value


def _text(value: str) -> str:
    if not _TEXT.fullmatch(value):
        raise ValueError("another text")
    return value
