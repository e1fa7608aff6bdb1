"""Tokens of OpenID Connect issuers name a client by plain claims, and only what they may."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind, ClientRole
from spawnmesh_runtime.jwks import JwksUrl, Keys
from spawnmesh_runtime.oidc import OidcIssuer, OidcVerifier
from spawnmesh_runtime.tokens import TokenVerifier

ISSUER = "https://login.example.com/realms/acme"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
KEYS: dict[str, Any] = {"RS256": RSA_KEY, "ES256": EC_KEY}


def members() -> list[dict[str, Any]]:
    """Return the keys as an issuer publishes them: without `iss`, and with one for encryption."""
    rsa_member = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key()))
    ec_member = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY.public_key()))
    return [
        {**rsa_member, "kid": "RS256", "alg": "RS256", "use": "sig"},
        {**ec_member, "kid": "ES256", "alg": "ES256", "use": "sig"},
        {**rsa_member, "kid": "enc", "alg": "RSA-OAEP", "use": "enc"},
    ]


@dataclass
class Published:
    """The keys of an issuer, which were fetched before."""

    current: Keys

    def keys(self) -> Keys:
        return self.current

    async def refresh(self, *, unknown_key: bool) -> None:
        pass


def verifier(**changed: Any) -> TokenVerifier:
    """Return the verifier of a service that accepts tokens of the issuer."""
    issuer = OidcIssuer(
        **{"issuer": ISSUER, "audience": "spawnmesh", "jwks_url": "https://login.example.com/jwks", **changed}
    )
    published = Published(JwksUrl("https://login.example.com", issuer=ISSUER).read({"keys": members()}))
    return TokenVerifier(
        Published({}), oidc=[OidcVerifier(issuer, max_lifetime_seconds=86_400, source=published)]
    )


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a token, with some changed; None removes one."""
    now = int(utc_now().timestamp())
    plain = {
        "iss": ISSUER,
        "aud": ["account", "spawnmesh"],
        "sub": "0f1c",
        "iat": now,
        "exp": now + 300,
        "tenant": "acme",
        "roles": ["user", "offline_access"],
    }
    return {name: value for name, value in {**plain, **changed}.items() if value is not None}


def token(algorithm: str = "RS256", *, key_id: str = "", **changed: Any) -> str:
    return jwt.encode(
        claims(**changed), KEYS[algorithm], algorithm=algorithm, headers={"kid": key_id or algorithm}
    )


async def refusal(made: str, **settings: Any) -> MeshError:
    with pytest.raises(MeshError) as refused:
        await verifier(**settings).authenticate(made)
    return refused.value


@pytest.mark.parametrize("algorithm", KEYS)
async def test_plain_claims_name_a_client_of_a_tenant(algorithm: str) -> None:
    caller = await verifier().authenticate(token(algorithm))
    assert caller == Caller(CallerKind.CLIENT, "0f1c", "acme", role=ClientRole.USER)
    assert caller.issuer == ISSUER


async def test_claims_with_tenant_and_roles_are_configured() -> None:
    settings = {"tenant_claim": "https://example.com/tenant", "roles_claim": "realm_access.roles"}
    made = token(
        **{
            "https://example.com/tenant": "globex",
            "realm_access": {"roles": ["operator"]},
            "roles": ["admin"],
        }
    )
    caller = await verifier(**settings).authenticate(made)
    assert (caller.tenant_id, caller.role) == ("globex", ClientRole.OPERATOR)


async def test_scopes_are_roles_if_the_claim_is_text() -> None:
    caller = await verifier(roles_claim="scope").authenticate(token(scope="openid reader profile"))
    assert caller.role is ClientRole.READER


@pytest.mark.parametrize(
    ("roles", "settings", "role"),
    [
        (["admin", "reader"], {}, ClientRole.READER),
        (["admin"], {}, ClientRole.NONE),
        (["admin"], {"max_role": "admin"}, ClientRole.ADMIN),
        (["operator", "user"], {"max_role": "user"}, ClientRole.USER),
        (None, {}, ClientRole.NONE),
        (None, {"roles_claim": ""}, ClientRole.OPERATOR),
    ],
)
async def test_issuer_gives_the_roles_that_the_settings_let_it_give(
    roles: list[str] | None, settings: dict[str, Any], role: ClientRole
) -> None:
    caller = await verifier(**settings).authenticate(token(roles=roles))
    assert (caller.kind, caller.role) == (CallerKind.CLIENT, role)


async def test_operator_of_the_mesh_has_no_tenant_and_an_issuer_that_may_say_so() -> None:
    made = token(roles=["admin"], tenant=None)
    caller = await verifier(max_role="admin").authenticate(made)
    assert (caller.kind, caller.tenant_id) == (CallerKind.ADMIN, "")
    assert (await refusal(made)).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize(
    ("tenants", "tenant", "is_named"),
    [
        (["acme"], "acme", True),
        (["acme"], "acme-2", False),
        (["acme"], "acm", False),
        (["globex", "acme-*"], "acme-2", True),
        (["globex", "acme-*"], "globex", True),
        (["globex", "acme-*"], "acme", False),
        (["globex", "acme-*"], "evil-acme-2", False),
    ],
)
async def test_issuer_names_the_tenants_that_the_settings_let_it_name(
    tenants: list[str], tenant: str, is_named: bool
) -> None:
    made = token(tenant=tenant)
    accepting = verifier(tenants=tenants)
    if is_named:
        assert (await accepting.authenticate(made)).tenant_id == tenant
        return
    with pytest.raises(MeshError) as error:
        await accepting.authenticate(made)
    assert error.value.reason is Reason.TOKEN_INVALID
    assert tenant not in error.value.message


async def test_issuer_of_some_tenants_makes_no_operator_of_the_mesh() -> None:
    with pytest.raises(ValidationError, match="max_role admin is for every tenant"):
        verifier(tenants=["acme"], max_role="admin")
    accepting = verifier(tenants=["acme"])
    assert (await accepting.authenticate(token(roles=["admin"]))).role is ClientRole.NONE
    with pytest.raises(MeshError) as error:
        await accepting.authenticate(token(roles=["admin"], tenant=None))
    assert error.value.reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("tenants", [[], [""], ["*"], ["ac*me"], ["ACME"], ["acme/*"]])
def test_list_of_tenants_that_says_nothing_is_refused(tenants: list[str]) -> None:
    with pytest.raises(ValidationError, match="must be tenant ids"):
        verifier(tenants=tenants)


@pytest.mark.parametrize("field", ["issuer", "jwks_url"])
def test_keys_do_not_travel_in_plain_text_but_on_this_machine(field: str) -> None:
    for host in ("login.example.com", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com", "[::2]"):
        with pytest.raises(ValidationError, match="must start with https://"):
            verifier(**{field: f"http://{host}/x"})
    for host in ("localhost:8080", "127.0.0.1:1", "[::1]"):
        verifier(**{field: f"http://{host}/x"})


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned() -> str:
    return f"{_part({'alg': 'none', 'kid': 'RS256'})}.{_part(claims())}."


def signed_with_the_public_key() -> str:
    public = RSA_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{_part({'alg': 'HS256', 'kid': 'RS256'})}.{_part(claims())}"
    signature = hmac.digest(public, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


FORGED: dict[str, Callable[[], str]] = {
    "another audience": lambda: token(aud="account"),
    "no audience": lambda: token(aud=None),
    "another issuer": lambda: token(iss="https://evil.example.com"),
    "the name of an issuer of the mesh": lambda: token(iss="client"),
    "no issuer": lambda: token(iss=None),
    "no subject": lambda: token(sub=None),
    "no expiry": lambda: token(exp=None),
    "no time of issue": lambda: token(iat=None),
    "no tenant": lambda: token(tenant=None),
    "several tenants": lambda: token(tenant=["acme", "globex"]),
    "tenant that is a pattern": lambda: token(tenant="%"),
    "every tenant": lambda: token(tenant="*"),
    "roles that are no names": lambda: token(roles=[1]),
    "roles in an object": lambda: token(roles={"admin": True}),
    "algorithm none": unsigned,
    "HS256 with the public key": signed_with_the_public_key,
    "another key of the issuer": lambda: token("ES256", key_id="RS256"),
    "key for encryption": lambda: token(key_id="enc"),
    "unknown key": lambda: token(key_id="other"),
    "kind of the mesh": lambda: token(kind="service", tenant=None),
}


@pytest.mark.parametrize("form", FORGED)
async def test_forged_token_is_refused_without_being_repeated(form: str) -> None:
    made = FORGED[form]()
    error = await refusal(made)
    assert error.reason is Reason.TOKEN_INVALID
    assert made not in error.message


async def test_kind_in_a_token_of_another_issuer_has_no_meaning() -> None:
    caller = await verifier().authenticate(token(kind="service", permissions=["unowned_append"]))
    assert (caller.kind, caller.permissions) == (CallerKind.CLIENT, frozenset())


async def test_expired_and_long_lived_tokens_are_refused() -> None:
    now = int(utc_now().timestamp())
    assert (await refusal(token(exp=now - 1))).reason is Reason.TOKEN_EXPIRED
    assert (await refusal(token(exp=now + 86_401))).reason is Reason.TOKEN_LIFETIME_EXCEEDED


async def test_token_without_an_id_can_be_revoked_by_its_hash() -> None:
    made, named = token(), token(jti="3f2a")
    keys = [(await verifier().authenticate(one)).revocation_key for one in (made, named)]
    signed, _, _ = made.rpartition(".")
    assert keys[0] == f"acme/sha256:{hashlib.sha256(signed.encode()).hexdigest()}"
    assert keys[1] == "acme/3f2a"
