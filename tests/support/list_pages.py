"""Checks that hold for every list which comes in pages, through its public RPC."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from buf.validate import validate_pb2
from google.protobuf.message import Message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

Call = Callable[[Any], Awaitable[Any]]
"""Make the call of a list as one caller."""


@dataclass(frozen=True)
class PagedList:
    """A list with two items or more, at its beginning.

    `elsewhere` has the same list of other callers, and lists of other requests and RPCs, all with
    more than one item. `add` adds an item: behind all others if the list `grows`, else outside of
    the list.
    """

    call: Call
    request: Message
    items: str
    elsewhere: Sequence[tuple[Call, Message]]
    add: Callable[[], Awaitable[object]] | None = None
    grows: bool = True
    is_downwards: bool = False

    async def page(self, size: int, token: str = "") -> Any:
        return await self.call(_with_page(self.request, size, token))

    async def read(self, size: int, *, adding: int = 0) -> list[Any]:
        """Return the items of all pages. Behind each of the first pages, an item is added."""
        found: list[Any] = []
        tokens = {""}
        token = ""
        while True:
            page = await self.page(size, token)
            items = list(getattr(page, self.items))
            assert len(items) <= (size or len(items))
            found = items + found if self.is_downwards else found + items
            token = page.next_page_token
            if not token:
                return found
            assert token not in tokens, "the same page again"
            tokens.add(token)
            if adding and self.add is not None:
                await self.add()
                adding -= 1

    @property
    def max_page_size(self) -> int:
        """Return the largest size that the contract allows."""
        options = self.request.DESCRIPTOR.fields_by_name["page_size"].GetOptions()
        return int(options.Extensions[validate_pb2.field].int32.lte)


def _with_page(request: Message, size: int, token: str) -> Any:
    wanted: Any = type(request)()
    wanted.CopyFrom(request)
    wanted.page_size = size
    wanted.page_token = token
    return wanted


async def _fields_refused(call: Awaitable[Any]) -> list[str]:
    """Return the fields that a call is refused for."""
    with pytest.raises(MeshError) as caught:
        await call
    assert caught.value.reason is Reason.INVALID_REQUEST
    return [violation.field for violation in caught.value.violations]


async def check_pages(listed: PagedList) -> None:
    """Pages of any size are the whole list, and nothing is returned twice while items are added."""
    whole = await listed.read(0)
    assert len(whole) > 1
    assert [item for item in whole if whole.count(item) > 1] == []
    for size in (1, 2, len(whole), listed.max_page_size):
        assert await listed.read(size) == whole, size
    if listed.add is None:
        return
    grown = await listed.read(1, adding=2)
    if listed.grows:
        assert (len(grown), grown[: len(whole)]) == (len(whole) + 2, whole)
        assert await listed.read(0) == grown
    else:
        assert grown == whole


async def check_page_sizes(listed: PagedList) -> None:
    """Sizes beyond the bounds of the contract are refused."""
    for size in (-1, listed.max_page_size + 1):
        assert await _fields_refused(listed.page(size)) == ["page_size"], size


def _forged(token: str) -> Iterator[str]:
    """Yield texts that are nearly the token, and texts that are none."""
    middle = len(token) // 2
    yield from ("x", "A" * 40, "%", token[:-2], token + "A", token[::-1])
    yield token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]


async def check_page_tokens(listed: PagedList) -> None:
    """A token is good for its own list and caller alone."""
    token = (await listed.page(1)).next_page_token
    assert token
    for forged in _forged(token):
        assert await _fields_refused(listed.page(1, forged)) == ["page_token"], forged
    for call, request in listed.elsewhere:
        other = (await call(_with_page(request, 1, ""))).next_page_token
        assert other, request
        for foreign in (listed.page(1, other), call(_with_page(request, 1, token))):
            assert await _fields_refused(foreign) == ["page_token"], request
    assert await listed.page(2, token)  # Another size is no other list.
