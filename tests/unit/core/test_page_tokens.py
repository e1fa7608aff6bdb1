"""A page token is good for the list, the filters and the caller that it was given for."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenants
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import PagedRequest, Part, page_token, position_of
from spawnmesh_core.reasons import Reason

CALLER = ("acme", "ses_1")


def request(token: str = "", **fields: object) -> pb.ListSessionsRequest:
    given = {"filter": "label = a", **fields}
    return pb.ListSessionsRequest(page_token=token, **given)  # type: ignore[arg-type]


def assert_refused(asked: PagedRequest, *caller: str, types: tuple[Any, ...] = (str,)) -> None:
    with pytest.raises(MeshError) as caught:
        position_of(asked, types, *caller)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [one.field for one in caught.value.violations] == ["page_token"]


PARTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(),
    st.datetimes(timezones=st.just(UTC)),
)


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_position_comes_back(position: list[Part]) -> None:
    token = page_token(position, request(), *CALLER)
    types: Any = tuple(map(type, position))
    assert position_of(request(token, page_size=7), types, *CALLER) == tuple(position)


def test_time_comes_back_in_utc() -> None:
    east = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    token = page_token([east], request(), *CALLER)
    found = position_of(request(token), (datetime,), *CALLER)
    assert found is not None
    assert found[0].isoformat() == "2026-01-01T00:00:00+00:00"


def test_request_without_a_token_has_no_position() -> None:
    assert position_of(request(), (str,), *CALLER) is None


OTHER_PARTS: dict[type[Part], tuple[Any, ...]] = {
    str: (None, True, 1, 1.5, [], {}, "\0", "a\0b", "x" * 769),
    int: (None, True, 1.5, 10.0, "1", [1], {}, 2**63, -(2**63) - 1, 10**40),
    bytes: (None, 1, [], "x", "a", "AB", "a b", "ab ", "\0"),
    datetime: (
        *(None, 1, [], "", "x", "now", "infinity", "2026-01-01", "2026-01-01T00:00:00", "\0"),
        *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-02-30T00:00:00+00:00"),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
    ),
}


@pytest.mark.parametrize("wanted", OTHER_PARTS)
def test_position_of_other_types_is_refused(wanted: type[Part]) -> None:
    """Their digest is the right one, as anyone can compute it."""
    for part in OTHER_PARTS[wanted]:
        token = page_token([part], request(), *CALLER)
        assert_refused(request(token), *CALLER, types=(wanted,))


@pytest.mark.parametrize("position", [[], ["a"], ["a", 1, 1], [1, "a"], [["a", 1]]])
def test_position_of_another_length_or_order_is_refused(position: list[Any]) -> None:
    token = page_token(position, request(), *CALLER)
    assert_refused(request(token), *CALLER, types=(str, int))


FOREIGN: dict[str, Callable[[str], tuple[PagedRequest, tuple[str, ...]]]] = {
    "tenant": lambda token: (request(token), ("globex", "ses_1")),
    "session": lambda token: (request(token), ("acme", "ses_2")),
    "tenant that begins alike": lambda token: (request(token), ("acmeses_1", "")),
    "filter": lambda token: (request(token, filter="label = b"), CALLER),
    "another filter": lambda token: (request(token, include_archived=True), CALLER),
    "RPC": lambda token: (tenants.ListAgentsRequest(page_token=token), CALLER),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_token_of_another_list_is_refused(what: str) -> None:
    asked, caller = FOREIGN[what](page_token(["ses_5"], request(), *CALLER))
    assert_refused(asked, *caller)


def test_changed_token_is_refused() -> None:
    token = page_token(["ses_5"], request(), *CALLER)
    for place, letter in enumerate(token):
        for other in ("A" if letter != "A" else "B", "_", "=", " ", "é", ""):
            changed = token[:place] + other + token[place + 1 :]
            if changed != token:
                assert_refused(request(changed), *CALLER)
    for cut in range(1, len(token)):
        assert_refused(request(token[:cut]), *CALLER)
    for added in ("=", "A", "\n", token):
        assert_refused(request(token + added), *CALLER)


TEXTS = (
    *("[" * 400, "null", "1", "{}", '["a",null]', "[true]", "[1.5]", "\ud800", '"a"', '{"a":1}'),
    *('["\\ud800"]', '["a\\udfff"]', '["\\u0000"]', "[NaN]", f"[{'1' * 5000}]"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_token_of_something_else_is_refused(text: str) -> None:
    data = b"\x00" * 12 + text.encode(errors="surrogatepass")
    assert_refused(request(urlsafe_b64encode(data).decode().rstrip("=")), *CALLER)
