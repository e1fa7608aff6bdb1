"""The person that a token says, for show."""

import time
from pathlib import Path

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.web.navigation import pages_of, way_back
from spawnmesh_console.web.people import Person, TokenUnreadable, person_of
from spawnmesh_devstack.keys import make_keys
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.tokens import TokenMinter

SESSIONS, TENANTS = "spawnmesh.session.v1.SessionService", "spawnmesh.session.v1.TenantService"
KEY = "a key of thirty-two bytes or more"


@pytest.fixture(scope="module")
def minter(tmp_path_factory: pytest.TempPathFactory) -> TokenMinter:
    keys: Path = tmp_path_factory.mktemp("keys")
    make_keys(keys)
    return TokenMinter("client", keys / "client.pem")


def token(**claims: object) -> str:
    return jwt.encode({"exp": time.time() + 600, **claims}, KEY)


def person(**claims: object) -> Person:
    return person_of(token(**claims), "form key")


@pytest.mark.parametrize("role", [one for one in ClientRole if one is not ClientRole.ADMIN])
def test_the_role_of_a_token_of_the_mesh(role: ClientRole, minter: TokenMinter) -> None:
    found = person_of(minter.client_token("acme", "ada", 600, role=role), "form key")
    assert (found.tenant_id, found.subject, found.role) == ("acme", "ada", role)


def test_a_token_without_roles_is_an_operators(minter: TokenMinter) -> None:
    assert person_of(minter.client_token("acme", "ada", 600), "form key").role is ClientRole.OPERATOR


def test_the_largest_of_several_roles_counts_and_strange_ones_do_not() -> None:
    assert person(tenant="acme", roles=["reader", "user", "other"]).role is ClientRole.USER
    for strange in (["other"], [], "operator", {"operator": 1}, 7, [["operator"], None, 1]):
        assert person(tenant="acme", roles=strange).role is ClientRole.NONE


def test_the_role_of_a_token_of_another_issuer_is_not_known() -> None:
    found = person(groups=["operators"], sub="ada")
    assert (found.tenant_id, found.role) == ("", None)
    assert found.may_call(SESSIONS, "KillSession")
    assert not found.may_call(TENANTS, "ListTenants")


def test_a_role_opens_rpcs_as_the_contracts_say() -> None:
    calls = {
        (SESSIONS, "ListSessions"): ClientRole.READER,
        (SESSIONS, "SpawnSession"): ClientRole.USER,
        (TENANTS, "UpdateAgent"): ClientRole.OPERATOR,
        (TENANTS, "ListTenants"): ClientRole.ADMIN,
    }
    for role in ClientRole:
        one = person(tenant="acme", roles=[role.name.lower()])
        assert {call: one.may_call(*call) for call in calls} == {
            call: role >= needed for call, needed in calls.items()
        }


@pytest.mark.parametrize(
    "expiry", [None, "soon", [], {}, True, 0, -1, float("inf"), float("-inf"), 1e300, -1e300, 10**40]
)
def test_a_token_without_a_time_to_come_is_unreadable(expiry: object) -> None:
    with pytest.raises(TokenUnreadable, match="token"):
        person(exp=expiry, tenant="acme")


@pytest.mark.parametrize("kind", ["run", "runner", "service", "", None, 1, ["client"]])
def test_a_token_of_another_kind_is_no_persons(kind: object) -> None:
    with pytest.raises(TokenUnreadable, match="no person"):
        person(kind=kind, tenant="acme")


def test_an_operator_of_the_mesh_is_of_no_tenant(minter: TokenMinter) -> None:
    found = person_of(minter.admin_token("ada", 600), "form key")
    assert (found.tenant_id, found.subject, found.role) == ("", "ada", ClientRole.ADMIN)
    assert found.is_of_no_tenant
    assert not person(tenant="acme", roles=["admin"]).is_of_no_tenant
    assert person(kind="admin", tenant="acme").tenant_id == "", "the tenant of such a token is none"


@pytest.mark.parametrize("issuer", ["https://idp.example", "http://localhost:1"])
def test_an_identity_provider_makes_no_operator_of_the_mesh(issuer: str) -> None:
    with pytest.raises(TokenUnreadable, match="no person"):
        person(kind="admin", iss=issuer)


def test_only_operators_of_the_mesh_are_led_to_the_tenants(minter: TokenMinter) -> None:
    operator = person_of(minter.admin_token("ada", 600), "form key")
    assert [path for path, _ in pages_of(operator)] == ["/tenants"]
    assert way_back(operator) == ("/tenants", "All tenants")
    for one in (person(tenant="acme"), person(tenant="acme", roles=["reader"]), person(groups=["operators"])):
        paths = [path for path, _ in pages_of(one)]
        assert "/tenants" not in paths
        assert {"/sessions", "/storage", "/start"} <= {*paths}
        assert way_back(one) == ("/sessions", "All sessions")
    assert {"/tenants", "/sessions"} <= {path for path, _ in pages_of(person(tenant="acme", roles=["admin"]))}
    assert pages_of(person(tenant="acme", roles=[])) == []
    assert way_back(None) == ("/sessions", "All sessions")


@given(st.text(max_size=60) | st.lists(st.text(max_size=20), min_size=3, max_size=3).map(".".join))
def test_any_text_is_a_token_or_is_unreadable(text: str) -> None:
    with pytest.raises(TokenUnreadable, match="no token"):
        person_of(text, "form key")


def test_a_person_in_a_log_shows_neither_token_nor_key() -> None:
    found = person(tenant="acme")
    assert found.token not in repr(found)
    assert "form key" not in repr(found)
