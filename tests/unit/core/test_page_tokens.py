"""A page token is good for the list, the filters and the caller that it was given for, for a day."""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextvars import Context
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenants
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import LIFETIME, PagedRequest, Part, page_key, page_token, position_of
from spawnmesh_core.reasons import Reason

CALLER = ("acme", "ses_1")
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@pytest.fixture(autouse=True, scope="module")
def _key() -> Iterator[None]:
    with page_key(KEY):
        yield


def request(token: str = "", **fields: object) -> pb.ListSessionsRequest:
    given = {"filter": "label = a", **fields}
    return pb.ListSessionsRequest(page_token=token, **given)  # type: ignore[arg-type]


def refusal(asked: PagedRequest, *caller: str, types: tuple[Any, ...] = (str,)) -> str:
    """Return the text of the refusal for the field `page_token`."""
    with pytest.raises(MeshError) as caught:
        position_of(asked, types, *caller)
    assert caught.value.reason is Reason.INVALID_REQUEST
    [violation] = caught.value.violations
    assert violation.field == "page_token"
    return violation.description


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


def test_token_is_good_for_a_day() -> None:
    def made(age: timedelta) -> str:
        return page_token(["ses_5"], request(), *CALLER, clock=lambda: utc_now() - age)

    minute = timedelta(minutes=1)
    assert position_of(request(made(LIFETIME - minute)), (str,), *CALLER) == ("ses_5",)
    assert position_of(request(made(-minute)), (str,), *CALLER) == ("ses_5",)  # Clocks differ.
    said = refusal(request(made(LIFETIME + minute)), *CALLER)
    assert "expired" in said
    assert "empty token" in said
    assert "expired" not in refusal(request(made(LIFETIME + minute)), "globex", "ses_1")


def test_token_of_another_key_is_refused() -> None:
    with page_key(OTHER_KEY):
        token = page_token(["ses_5"], request(), *CALLER)
        assert position_of(request(token), (str,), *CALLER) == ("ses_5",)
    refusal(request(token), *CALLER)


def test_without_a_key_no_token_is_made() -> None:
    def alone() -> None:
        with pytest.raises(LookupError):
            page_token(["ses_5"], request(), *CALLER)

    Context().run(alone)


@pytest.mark.parametrize("wanted", [(), (str,), (int, str), (str, int, int), (str, str), (str, bytes)])
def test_parts_of_other_types_are_refused(wanted: tuple[Any, ...]) -> None:
    """As if an earlier release had another order."""
    token = page_token(["a", 1], request(), *CALLER)
    refusal(request(token), *CALLER, types=wanted)


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
    refusal(asked, *caller)


def test_changed_token_is_refused() -> None:
    token = page_token(["ses_5"], request(), *CALLER)
    for place, letter in enumerate(token):
        for other in ("A" if letter != "A" else "B", "_", "=", " ", "é", ""):
            changed = token[:place] + other + token[place + 1 :]
            if changed != token:
                refusal(request(changed), *CALLER)
    for cut in range(1, len(token)):
        refusal(request(token[:cut]), *CALLER)
    for added in ("=", "A", "\n", token):
        refusal(request(token + added), *CALLER)


TEXTS = (
    *("[" * 400, "null", "1", "{}", '["a",null]', "[true]", "[1.5]", "\ud800", '"a"', '{"a":1}', ""),
    *('["\\ud800"]', '["a\\udfff"]', '["\\u0000"]', "[NaN]", f"[{'1' * 5000}]", '[99999999999,"a"]'),
)


@pytest.mark.parametrize("text", TEXTS)
def test_token_of_something_else_is_refused(text: str) -> None:
    data = b"\x00" * 16 + text.encode(errors="surrogatepass")
    refusal(request(urlsafe_b64encode(data).decode().rstrip("=")), *CALLER)
