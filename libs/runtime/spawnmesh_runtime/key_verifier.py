"""Verify the signatures of tokens with the keys of a source, and cache the verified tokens."""

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import jwt
from spawnmesh_core.clock import Clock
from spawnmesh_core.errors import MeshError

from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.claims import check_times, expired_token, invalid_token
from spawnmesh_runtime.jwks import IssuerKey, Keys, KeySource

_CACHED_TOKENS = 4096
_MAX_TOKEN_CHARS = 8192
_COMPACT_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The conditions of a token: an audience, some claims, and a longest life."""

    audience: str
    required_claims: tuple[str, ...]
    max_lifetime_seconds: float


class KeyVerifier:
    """Verify tokens that the keys of one source sign, and return their callers.

    A token is valid if a known key signed it and the key belongs to the issuer that the token
    names. Verified tokens are cached until they expire or the keys change. A refusal repeats no
    part of the token.
    """

    def __init__(self, source: KeySource, rules: TokenRules, clock: Clock) -> None:
        self.source = source
        self.rules = rules
        self.clock = clock
        self._verified: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._verified_with: Keys = {}

    def caller_of(self, claims: dict[str, Any], issuer: str, token: str) -> Caller:
        """Return the caller that the verified claims name. Raises MeshError TOKEN_INVALID."""
        raise NotImplementedError

    async def has_keys(self) -> bool:
        """Fetch keys if there have never been any, and return whether tokens can be verified."""
        try:
            await self.source.refresh(unknown_key=False)
        except MeshError:
            return False
        return True

    def knows(self, token: str) -> bool:
        """Return whether the token is cached."""
        return token in self._verified

    async def authenticate(self, token: str) -> Caller:
        """Verify the token like `verify`, and refresh the keys first if that is due."""
        await self.source.refresh(unknown_key=False)
        if token not in self._verified and not self._keys_of(token):
            await self.source.refresh(unknown_key=True)
        return self.verify(token)

    def verify(self, token: str) -> Caller:
        """Return the caller, with the current keys.

        Raises MeshError TOKEN_INVALID, TOKEN_EXPIRED or TOKEN_LIFETIME_EXCEEDED.
        """
        keys = self.source.keys()
        if keys is not self._verified_with:
            self._verified.clear()
            self._verified_with = keys
        now = self.clock().timestamp()
        known = self._verified.get(token)
        if known is None:
            known = self._read(token, now)
            self._verified[token] = known
            if len(self._verified) > _CACHED_TOKENS:
                self._verified.popitem(last=False)
        caller, expiry = known
        if expiry <= now:
            del self._verified[token]
            raise expired_token()
        self._verified.move_to_end(token)
        return caller

    def _keys_of(self, token: str) -> tuple[IssuerKey, ...]:
        check_form(token)
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            raise invalid_token("it is not a signed JWT") from None
        return self.source.keys().get(key_id, ()) if isinstance(key_id, str) else ()

    def _read(self, token: str, now: float) -> tuple[Caller, float]:
        keys = self._keys_of(token)
        if not keys:
            raise invalid_token("it is signed with a key that is not known here")
        issuer, claims = self._signed_claims(token, keys)
        check_times(claims, now, self.rules.max_lifetime_seconds)
        caller = self.caller_of(claims, issuer, token)
        return caller, caller.expire_timestamp

    def _signed_claims(self, token: str, keys: tuple[IssuerKey, ...]) -> tuple[str, dict[str, Any]]:
        """Return the issuer and the claims of a token.

        The key id is only a hint: a key must verify the signature and belong to the issuer of the
        token.
        """
        refusal = invalid_token("its signature or its form is wrong")
        for key in keys:
            try:
                return key.issuer, self._decoded(token, key)
            except jwt.MissingRequiredClaimError as error:
                raise invalid_token(f"it lacks the claim {error.claim}") from None
            except jwt.InvalidAudienceError:
                raise invalid_token(f"it was made for another audience than {self.rules.audience}") from None
            except jwt.InvalidIssuerError:
                refusal = invalid_token("its key belongs to another issuer")
            except jwt.PyJWTError:  # Another one of the keys may have signed it.
                continue
        raise refusal

    def _decoded(self, token: str, key: IssuerKey) -> dict[str, Any]:
        return jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=self.rules.audience,
            issuer=key.issuer,
            options={
                "require": list(self.rules.required_claims),
                # The times are compared with our clock, each with its own leeway.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )


def check_form(token: str) -> None:
    """Raise MeshError TOKEN_INVALID for a token that is too long to be looked at, or not in the
    compact form of a signed JWT (RFC 7515). The library ignores foreign characters.
    """
    if len(token) > _MAX_TOKEN_CHARS:
        raise invalid_token("it is too long")
    if _COMPACT_FORM.fullmatch(token) is None:
        raise invalid_token("it is not a signed JWT")
