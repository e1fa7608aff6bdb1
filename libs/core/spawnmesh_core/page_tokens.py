"""Page tokens: the position of the next page, signed for the RPC, the caller and the filters.

A token is an HMAC, the time at which the page was made, and the position, which its holder can
read. The key is a secret of the service that all of its replicas have, so each takes the tokens of
the others, and no caller can make one. A token that was cut or changed, or given to another
caller, list or service, would skip rows: it is refused. So is one that is older than a day: a
position does not mean the same for ever.
"""

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar, overload

from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.errors import invalid

LIFETIME = timedelta(days=1)
"""The age of the oldest token that is good: a person goes on the next morning with the list of
today, and a release that changes the order of a list meets no token of the one before for longer.
"""
_SIGNATURE_BYTES = 16

Part = str | int | bytes | datetime
"""A column of a position. A time has a time zone; a page gets it back in UTC."""

_First = TypeVar("_First", bound=Part)
_Second = TypeVar("_Second", bound=Part)
_Third = TypeVar("_Third", bound=Part)

_key: ContextVar[bytes] = ContextVar("spawnmesh_page_key")


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


@contextmanager
def page_key(key: bytes) -> Iterator[None]:
    """Sign and check the page tokens of the block with the key, a secret of 32 bytes."""
    former = _key.set(key)
    try:
        yield
    finally:
        _key.reset(former)


def page_token(position: Sequence[Part], request: TokenRequest, *caller: str, clock: Clock = utc_now) -> str:
    """Return the token of the page after the position: the last row of a page, by the columns that
    order the list.

    It is good for the same request, except for its page size, and for the same `caller`: the
    tenant, and for a run its session. Raises LookupError outside of a block with a key.
    """
    signed = [int(clock().timestamp()), *map(_plain, position)]
    text = json.dumps(signed, separators=(",", ":"), ensure_ascii=False).encode()
    return _encoded(_signature(text, request, caller) + text)


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

    Raises INVALID_REQUEST for a token that no page of this list gave to this caller, for one that
    is older than LIFETIME, and for one whose parts have not these types, as after a new release.
    """
    token = request.page_token
    if not token:
        return None
    try:
        signed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        raise _foreign() from None
    signature, text = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
    # Compare the text of the token as well: base64 has several texts for the same bytes.
    if token != _encoded(signed) or not hmac.compare_digest(signature, _signature(text, request, caller)):
        raise _foreign()
    issued, *position = json.loads(text)
    if utc_now().timestamp() - issued > LIFETIME.total_seconds():
        raise invalid("page_token", "has expired after a day; begin the list again, with an empty token")
    try:
        return tuple(_part_of(part, wanted) for part, wanted in zip(position, types, strict=True))
    except ValueError:
        raise _foreign() from None


def _foreign() -> Exception:
    return invalid("page_token", "is no token that a page of this list gave to this caller")


def _encoded(signed: bytes) -> str:
    return urlsafe_b64encode(signed).decode().rstrip("=")


def _plain(part: Part) -> Any:
    match part:
        case datetime():
            return part.astimezone(UTC).isoformat()
        case bytes():
            return part.hex()
    return part


def _part_of(part: object, wanted: type[Part]) -> Part:
    """Return the part of a position as this type. Raises ValueError."""
    if wanted is int and isinstance(part, int):
        return part
    if wanted is not int and isinstance(part, str):
        if wanted is bytes:
            return bytes.fromhex(part)
        return datetime.fromisoformat(part) if wanted is datetime else part
    raise ValueError("another type")


def _signature(text: bytes, request: TokenRequest, caller: Sequence[str]) -> bytes:
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
    signature = hmac.new(_key.get(), digestmod=hashlib.sha256)
    for part in parts:
        signature.update(len(part).to_bytes(8) + part)
    return signature.digest()[:_SIGNATURE_BYTES]
