"""A page token is good for the list, the filters and the caller that it was given for."""

from base64 import urlsafe_b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenants
from spawnmesh_core.errors import MeshError
from spawnmesh_core.page_tokens import PagedRequest, page_token, position_of
from spawnmesh_core.reasons import Reason

CALLER = ("acme", "ses_1")


def request(token: str = "", **fields: object) -> pb.ListSessionsRequest:
    given = {"parent_session_id": "ses_9", **fields}
    return pb.ListSessionsRequest(page_token=token, **given)  # type: ignore[arg-type]


def assert_refused(asked: PagedRequest, *caller: str) -> None:
    with pytest.raises(MeshError) as caught:
        position_of(asked, *caller)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [one.field for one in caught.value.violations] == ["page_token"]


@given(st.lists(st.one_of(st.text(), st.integers(-(2**63), 2**63)), max_size=4))
def test_position_comes_back(position: list[str | int]) -> None:
    token = page_token(position, request(), *CALLER)
    assert position_of(request(token, page_size=7), *CALLER) == position


def test_request_without_a_token_has_no_position() -> None:
    assert position_of(request(), *CALLER) is None


FOREIGN: dict[str, Callable[[str], tuple[PagedRequest, tuple[str, ...]]]] = {
    "tenant": lambda token: (request(token), ("globex", "ses_1")),
    "session": lambda token: (request(token), ("acme", "ses_2")),
    "tenant that begins alike": lambda token: (request(token), ("acmeses_1", "")),
    "filter": lambda token: (request(token, parent_session_id="ses_8"), CALLER),
    "another filter": lambda token: (request(token, include_archived=True), CALLER),
    "RPC": lambda token: (tenants.ListAgentsRequest(page_token=token), CALLER),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_token_of_another_list_is_refused(what: str) -> None:
    asked, caller = FOREIGN[what](page_token(["ses_5"], request(), *CALLER))
    assert_refused(asked, *caller)


def test_changed_token_is_refused() -> None:
    token = page_token(["ses_5", 3], request(), *CALLER)
    for place, letter in enumerate(token):
        for other in ("A" if letter != "A" else "B", "_", "=", " ", "é", ""):
            changed = token[:place] + other + token[place + 1 :]
            if changed != token:
                assert_refused(request(changed), *CALLER)
    for cut in range(1, len(token)):
        assert_refused(request(token[:cut]), *CALLER)
    for added in ("=", "A", "\n", token):
        assert_refused(request(token + added), *CALLER)


@pytest.mark.parametrize("text", ["[" * 400, "null", "1", "{}", '["a",null]', "[true]", "[1.5]", "\ud800"])
def test_token_of_something_else_is_refused(text: str) -> None:
    data = b"\x00" * 12 + text.encode(errors="surrogatepass")
    assert_refused(request(urlsafe_b64encode(data).decode().rstrip("=")), *CALLER)
