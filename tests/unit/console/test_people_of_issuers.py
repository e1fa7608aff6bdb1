"""The tenant and the role of a person with a token of an identity provider, for show."""

import time
from typing import Any

import jwt
import pytest
from spawnmesh_console.web.people import Person, person_of
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.oidc import OidcIssuer

KEYCLOAK = OidcIssuer(
    issuer="https://login.example.com/realms/acme",
    audience="spawnmesh",
    jwks_url="https://login.example.com/certs",
    tenant_claim="org",
    roles_claim="resource_access.spawnmesh.roles",
)


def person(iss: str = KEYCLOAK.issuer, **claims: Any) -> Person:
    made = {"iss": iss, "sub": "ada", "exp": time.time() + 600, **claims}
    return person_of(jwt.encode(made, "a key of thirty-two bytes or more"), "form key", [KEYCLOAK])


def of_client(*roles: str) -> dict[str, Any]:
    return {"resource_access": {"spawnmesh": {"roles": [*roles]}}}


@pytest.mark.parametrize(
    ("claims", "tenant_id", "role"),
    [
        ({"org": "acme", **of_client("reader", "offline_access")}, "acme", ClientRole.READER),
        ({"org": "acme", **of_client("admin")}, "acme", ClientRole.NONE),
        ({"org": "acme", "tenant": "globex", "roles": ["operator"]}, "acme", ClientRole.NONE),
        ({"org": "Not A Tenant", **of_client("reader")}, "", None),
        ({"tenant": "acme", "roles": ["operator"]}, "", None),
        ({"org": "acme", "resource_access": {"spawnmesh": {"roles": 7}}}, "", None),
    ],
    ids=["reader", "above-the-highest", "other-claims", "no-tenant-id", "no-tenant", "no-list"],
)
def test_claims_are_those_that_the_services_read(
    claims: dict[str, Any], tenant_id: str, role: ClientRole | None
) -> None:
    found = person(**claims)
    assert (found.tenant_id, found.role, found.subject) == (tenant_id, role, "ada")


def test_token_of_an_issuer_that_is_not_known_says_neither_tenant_nor_role() -> None:
    for issuer in ("https://other.example.com", "http://127.0.0.1:9000"):
        found = person(issuer, tenant="acme", roles=["operator"])
        assert (found.tenant_id, found.role) == ("", None)
    assert person("client", tenant="acme").role is ClientRole.OPERATOR
