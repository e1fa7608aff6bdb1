"""Page tokens: the position of the next page, bound to the RPC, the caller and the filters.

A token is a digest and the position. The digest is no signature: a caller that makes a token of
its own chooses a position among the rows that it may list anyway. The digest finds tokens that were
cut or changed, or given to another caller or for another list, which would otherwise skip rows.
"""

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Protocol

from spawnmesh_core.errors import invalid

_DIGEST_BYTES = 12


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


class Position(list[str | int]):
    """The last row of a page, by the columns that order the list."""


def page_token(position: Sequence[str | int], request: TokenRequest, *caller: str) -> str:
    """Return the token of the page after the position.

    It is good for the same request, except for its page size, and for the same `caller`: the
    tenant, and for a run its session.
    """
    text = json.dumps(list(position), separators=(",", ":"), ensure_ascii=False).encode()
    return urlsafe_b64encode(_digest(text, request, caller) + text).decode().rstrip("=")


def position_of(request: TokenRequest, *caller: str) -> Position | None:
    """Return the position that the request's token names, or None without a token.

    Raises INVALID_REQUEST for a token that no page of this list gave to this caller.
    """
    token = request.page_token
    if not token:
        return None
    try:
        text = urlsafe_b64decode(token + "=" * (-len(token) % 4))[_DIGEST_BYTES:]
        position = json.loads(text)
    except (ValueError, RecursionError):
        raise _foreign() from None
    if not isinstance(position, list) or not all(type(part) in (str, int) for part in position):
        raise _foreign()
    # Compare the text of the token: base64 has several texts for the same bytes.
    if token != page_token(position, request, *caller):
        raise _foreign()
    return Position(position)


def _foreign() -> Exception:
    return invalid("page_token", "is no token that a page of this list gave to this caller")


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
