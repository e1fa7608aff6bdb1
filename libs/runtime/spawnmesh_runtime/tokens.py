"""Bearer tokens: JWTs with EdDSA or RS256 that name the caller, its tenant and the expiry.

Claims: `iss`, `sub`, `aud`, `iat`, `nbf`, `exp`, `kind`, and, depending on the kind, `tenant`,
`session`, `run` and `epoch`. The token of a client may have `roles` and `permissions`, lists of
names. That of a runner may have `tenants` and `agents`, lists that limit the runs it gets; that of
a run has `harness`, the id of the token that it was claimed with, and `traceparent` if such a
runner claimed it, `budget` if its model calls count in budgets, and `agent`, whose spending they
are. `jti` is the id under which a token of a client, an operator or a runner can be revoked.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_runtime.caller import Caller, CallerKind, ClientRole
from spawnmesh_runtime.claims import caller_of, invalid_token
from spawnmesh_runtime.jwks import KeySource
from spawnmesh_runtime.key_files import key_id_of
from spawnmesh_runtime.key_verifier import KeyVerifier, TokenRules
from spawnmesh_runtime.oidc import OidcVerifier

AUDIENCE = "spawnmesh"
SERVICES = frozenset({"session", "attachment-blob", "transcript", "model-router", "hook"})
SERVICE_TOKEN_SECONDS = 300
# A cached service token is replaced before its last minute, so that it outlives the call.
_RENEW_SECONDS = 60
_CACHED_SERVICE_TOKENS = 4096
_REQUIRED = ("iss", "sub", "aud", "exp", "nbf", "iat", "kind")
MAX_LIFETIME_SECONDS = 30 * 86_400
"""The longest life of a token, unless the settings say otherwise."""


def plugin_audience(audience: str, endpoint: str) -> str:
    """Return the audience of tokens for the plugin at the endpoint.

    `endpoint` is the registered endpoint of the plugin. A plugin is not part of the mesh: its
    tokens must not open the mesh or another plugin.
    """
    return f"{audience}/{endpoint}"


@dataclass(frozen=True, slots=True)
class HarnessClaim:
    """A program of a tenant that claimed a run.

    It claimed with the token of that id. It may continue the session's trace, which is empty if the
    session has none.
    """

    token_id: str
    traceparent: str


class TokenMinter:
    """Sign tokens as one issuer, with the key id of the key file.

    Raises OSError if the key file cannot be read, and ValueError if it has no Ed25519 or RSA
    private key.
    """

    def __init__(
        self, issuer: str, key_file: Path, *, audience: str = AUDIENCE, clock: Clock = utc_now
    ) -> None:
        pem = key_file.read_bytes()
        key = load_pem_private_key(pem, password=None)
        if not isinstance(key, Ed25519PrivateKey | RSAPrivateKey):
            raise ValueError("the signing key is neither Ed25519 nor RSA")
        self.issuer = issuer
        self._key = key
        self._key_id = key_id_of(pem, issuer)
        self._algorithm = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "RS256"
        self._audience = audience
        self._clock = clock
        self._service_tokens: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def derived_key(self, purpose: str) -> bytes:
        """Return a secret of 32 bytes for another purpose. It tells nothing of the signing key, and
        each process with the same signing key gets the same.
        """
        material = self._key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return HKDF(SHA256(), 32, salt=None, info=f"spawnmesh {purpose}".encode()).derive(material)

    def service_token(self, tenant_id: str, *, plugin: str = "") -> str:
        """Return a token for this service and the tenant. It is cached until it nearly expires.

        It opens the services of the mesh, or only the plugin at the endpoint `plugin`.
        """
        now = self._clock().timestamp()
        key = tenant_id, plugin
        cached = self._service_tokens.get(key)
        if cached is not None and cached[1] - now > _RENEW_SECONDS:
            return cached[0]
        audience = plugin_audience(self._audience, plugin) if plugin else self._audience
        token = self._sign(
            CallerKind.SERVICE, self.issuer, SERVICE_TOKEN_SECONDS, tenant=tenant_id, aud=audience
        )
        self._service_tokens[key] = token, int(now) + SERVICE_TOKEN_SECONDS
        self._service_tokens.move_to_end(key)
        if len(self._service_tokens) > _CACHED_SERVICE_TOKENS:
            self._service_tokens.popitem(last=False)
        return token

    def mesh_token(self) -> str:
        """Return a token for this service, for the RPCs that are about all tenants."""
        return self._sign(CallerKind.SERVICE, self.issuer, SERVICE_TOKEN_SECONDS)

    def run_token(
        self,
        tenant_id: str,
        session_id: str,
        run_id: str,
        epoch: int,
        ttl_seconds: float,
        *,
        harness: HarnessClaim | None = None,
        has_budget: bool = False,
        agent_id: str = "",
    ) -> str:
        """Return a token for a run that was claimed with this epoch, perhaps by a harness.

        With `has_budget`, its model calls count in the budgets that its session shares. They are
        listed as the spending of its agent.
        """
        claims: dict[str, str | int | bool] = {"session": session_id, "run": run_id, "epoch": epoch}
        if harness is not None:
            claims |= {"harness": harness.token_id, "traceparent": harness.traceparent}
        if has_budget:
            claims["budget"] = True
        if agent_id:
            claims["agent"] = agent_id
        return self._sign(CallerKind.RUN, run_id, ttl_seconds, tenant=tenant_id, **claims)

    def runner_token(
        self,
        subject: str = "",
        ttl_seconds: float = SERVICE_TOKEN_SECONDS,
        *,
        tenants: Collection[str] = (),
        agents: Collection[str] = (),
    ) -> str:
        """Return a token that only allows claiming runs: those of the tenants and the agents, or of
        all if none are named.

        The subject is the issuer if none is named.
        """
        named = {"tenants": sorted(set(tenants)), "agents": sorted(set(agents))}
        limits = {claim: names for claim, names in named.items() if names}
        return self._sign(
            CallerKind.RUNNER, subject or self.issuer, ttl_seconds, jti=new_id(IdKind.TOKEN), **limits
        )

    def client_token(
        self,
        tenant_id: str,
        subject: str,
        ttl_seconds: float,
        *,
        role: ClientRole | None = None,
        permissions: Collection[str] = (),
    ) -> str:
        """Return a token for a client of the tenant, with additional permissions.

        Without a role it has no claim `roles`, and its holder is an operator of the tenant.
        """
        extra: dict[str, list[str]] = {"permissions": sorted(permissions)} if permissions else {}
        if role is not None:
            extra["roles"] = [role.name.lower()]
        return self._sign(
            CallerKind.CLIENT, subject, ttl_seconds, tenant=tenant_id, jti=new_id(IdKind.TOKEN), **extra
        )

    def admin_token(self, subject: str, ttl_seconds: float) -> str:
        """Return a token for an operator of the mesh."""
        return self._sign(CallerKind.ADMIN, subject, ttl_seconds, jti=new_id(IdKind.TOKEN))

    def _sign(
        self, kind: CallerKind, subject: str, ttl_seconds: float, **claims: str | int | list[str]
    ) -> str:
        now = int(self._clock().timestamp())
        body = {
            "iss": self.issuer,
            "sub": subject,
            "aud": self._audience,
            "iat": now,
            "nbf": now,
            "exp": int(now + ttl_seconds),
            "kind": kind.value,
            **claims,
        }
        return jwt.encode(body, self._key, algorithm=self._algorithm, headers={"kid": self._key_id})


class TokenVerifier(KeyVerifier):
    """Verify the tokens of the mesh, and those of OpenID Connect issuers.

    The keys of the source sign tokens of the mesh. The issuer of such a token may issue tokens for
    certain kinds of caller only.
    """

    def __init__(
        self,
        source: KeySource,
        *,
        audience: str = AUDIENCE,
        client_issuers: Collection[str] = ("client",),
        max_lifetime_seconds: float = MAX_LIFETIME_SECONDS,
        oidc: Sequence[OidcVerifier] = (),
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(source, TokenRules(audience, _REQUIRED, max_lifetime_seconds), clock)
        self._client_issuers = frozenset(client_issuers)
        self._oidc = tuple(oidc)

    def for_plugin(self, endpoint: str) -> "TokenVerifier":
        """Return a verifier with the same keys that accepts only tokens for the plugin
        at the endpoint.
        """
        audience = plugin_audience(self.rules.audience, endpoint)
        return TokenVerifier(
            self.source, audience=audience, client_issuers=self._client_issuers, clock=self.clock
        )

    async def authenticate(self, token: str) -> Caller:
        """Verify the token like `verify`, or as its OpenID Connect issuer does. Refresh the keys
        first if that is due.
        """
        if self._oidc and not self.knows(token):
            for issuer in self._oidc:
                if issuer.issued(token):
                    return await issuer.authenticate(token)
        return await super().authenticate(token)

    def caller_of(self, claims: dict[str, Any], issuer: str, token: str) -> Caller:
        """Return the caller. Raises MeshError TOKEN_INVALID if the issuer may not name it."""
        named = caller_of(claims, token)
        if not self._may_issue(issuer, named):
            raise invalid_token("its issuer may not issue tokens for this kind of caller")
        return replace(named, expire_timestamp=float(claims["exp"]), issuer=issuer)

    def _may_issue(self, issuer: str, caller: Caller) -> bool:
        match caller.kind:
            case CallerKind.CLIENT | CallerKind.ADMIN:
                return issuer in self._client_issuers
            case CallerKind.RUN:
                return issuer == "session"
            case CallerKind.SERVICE:
                return issuer in SERVICES and caller.subject == issuer
            case CallerKind.RUNNER:
                return issuer == "runner" or (issuer in self._client_issuers and bool(caller.tenants))
