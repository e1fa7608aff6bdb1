"""Cursors of WatchSession: what is watched, and a position in each session that has not ended.

A cursor is no secret, and no signature keeps a caller from making one: the sessions that it names
are read under the rights of the caller, and it changes only what this caller is shown.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import astuple

from spawnmesh_core.errors import invalid

from spawnmesh_session.domain.watch_positions import MAX_MEMBERS, MemberPosition, WatchScope

_NUMBERS = range(2**63)
_SESSION_ID = re.compile(r"ses_[0-9a-z]{26}")
_TRANSCRIPT_CURSOR = re.compile(r"[\w-]{0,1024}", re.ASCII)
_RUN_ID = re.compile(r"(run_[0-9a-z]{26})?")


def render_cursor(scope: WatchScope, positions: Mapping[str, MemberPosition]) -> str:
    """Return the cursor of the positions."""
    members = [[session_id, *astuple(position)] for session_id, position in positions.items()]
    parts = [*_beginning_of(scope), members]
    return urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def parse_cursor(cursor: str, scope: WatchScope) -> dict[str, MemberPosition]:
    """Return the position of each session in the cursor.

    Raises INVALID_REQUEST for a text that is no cursor of a watch like this one.
    """
    try:
        parts = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return _positions_of(parts, scope)
    except (ValueError, TypeError, RecursionError):
        raise invalid("cursor", f"is no cursor of a watch like this one of {scope.session_id}") from None


def _beginning_of(scope: WatchScope) -> list[object]:
    return [scope.session_id, int(scope.with_transcript), int(scope.with_descendants)]


def _positions_of(parts: object, scope: WatchScope) -> dict[str, MemberPosition]:
    if not isinstance(parts, list) or parts[:-1] != _beginning_of(scope):
        raise ValueError("another watch")
    members = parts[-1]
    if not isinstance(members, list) or len(members) > MAX_MEMBERS:
        raise ValueError("another list")
    positions = {}
    for member in members:
        session_id, event_number, transcript_cursor, open_run_id, after_seq, ended_run_id = member
        for number in (event_number, after_seq):
            # `in` would compare a number of another type with each of the range.
            if type(number) is not int or number not in _NUMBERS:
                raise ValueError("another number")
        _require(_SESSION_ID, session_id)
        _require(_TRANSCRIPT_CURSOR, transcript_cursor)
        _require(_RUN_ID, open_run_id)
        _require(_RUN_ID, ended_run_id)
        positions[session_id] = MemberPosition(
            event_number, transcript_cursor, open_run_id, after_seq, ended_run_id
        )
    return positions


def _require(shape: re.Pattern[str], value: str) -> None:
    if not shape.fullmatch(value):
        raise ValueError("another shape")
