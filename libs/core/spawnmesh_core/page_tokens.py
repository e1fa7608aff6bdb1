"""Page tokens: the position of the next page, bound to the RPC, the caller and the filters.

A token is a digest and the position. The digest is no signature: a caller that makes a token of
its own chooses a position among the rows that it may list anyway. So the reader of a token states
the types of its parts, and any other position is refused. The digest finds tokens that were cut or
changed, or given to another caller or for another list, which would otherwise skip rows.
"""

import hashlib
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, overload

from spawnmesh_core.errors import invalid

_DIGEST_BYTES = 12
_INT8 = range(-(2**63), 2**63)
_TEXT = re.compile(r"[^\0\ud800-\udfff]{0,768}")
"""Text that PostgreSQL stores. No token of a request is long enough for a longer one."""

Part = str | int | bytes | datetime
"""A column of a position. A time has a time zone; a page gets it back in UTC."""

_First = TypeVar("_First", bound=Part)
_Second = TypeVar("_Second", bound=Part)
_Third = TypeVar("_Third", bound=Part)


class TokenRequest(Protocol):
    """A request of an RPC that lists. It may have a `page_size`."""

    page_token: str

    @property
    def DESCRIPTOR(self) -> Any:
        """The type of the message."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:
        """Return the bytes of the message."""


class PagedRequest(TokenRequest, Protocol):
    """A request that says how many rows a page has."""

    page_size: int


def page_token(position: Sequence[Part], request: TokenRequest, *caller: str) -> str:
    """Return the token of the page after the position: the last row of a page, by the columns that
    order the list.

    It is good for the same request, except for its page size, and for the same `caller`: the
    tenant, and for a run its session.
    """
    plain = [_plain(part) for part in position]
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    return urlsafe_b64encode(_digest(text, request, caller) + text).decode().rstrip("=")


@overload
def position_of(request: TokenRequest, types: tuple[type[_First]], *caller: str) -> tuple[_First] | None: ...


@overload
def position_of(
    request: TokenRequest, types: tuple[type[_First], type[_Second]], *caller: str
) -> tuple[_First, _Second] | None: ...


@overload
def position_of(
    request: TokenRequest, types: tuple[type[_First], type[_Second], type[_Third]], *caller: str
) -> tuple[_First, _Second, _Third] | None: ...


def position_of(request: TokenRequest, types: tuple[Any, ...], *caller: str) -> tuple[Any, ...] | None:
    """Return the position that the request's token names, or None without a token.

    The parts have these types: a number fits into 64 bits, a text into PostgreSQL. Raises
    INVALID_REQUEST for a token that no page of this list gave to this caller.
    """
    token = request.page_token
    if not token:
        return None
    try:
        found = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4))[_DIGEST_BYTES:])
        if not isinstance(found, list):
            raise _foreign()
        position = tuple(_part_of(part, wanted) for part, wanted in zip(found, types, strict=True))
    except (ValueError, OverflowError, RecursionError):
        raise _foreign() from None
    # Compare the text of the token: base64, JSON, times and digits have several texts for a value.
    if token != page_token(position, request, *caller):
        raise _foreign()
    return position


def _foreign() -> Exception:
    return invalid("page_token", "is no token that a page of this list gave to this caller")


def _plain(part: Part) -> Any:
    match part:
        case datetime():
            return part.astimezone(UTC).isoformat()
        case bytes():
            return part.hex()
    return part


def _part_of(part: object, wanted: type[Part]) -> Part:
    """Return the part of a position as this type. Raises ValueError or OverflowError."""
    if wanted is int and type(part) is int and part in _INT8:
        return part
    if wanted is not int and isinstance(part, str) and _TEXT.fullmatch(part):
        if wanted is bytes:
            return bytes.fromhex(part)
        if wanted is str:
            return part
        time = datetime.fromisoformat(part)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    raise ValueError("another type")


def _digest(text: bytes, request: TokenRequest, caller: Sequence[str]) -> bytes:
    bound = deepcopy(request)
    bound.page_token = ""
    if "page_size" in bound.DESCRIPTOR.fields_by_name:
        bound.page_size = 0  # type: ignore[attr-defined]
    parts = (
        text,
        str(request.DESCRIPTOR.full_name).encode(),
        bound.SerializeToString(deterministic=True),
        *map(str.encode, caller),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()[:_DIGEST_BYTES]
