"""The cookie of a browser that is at the identity provider: the sealed attempt to sign in."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import astuple

from cryptography.fernet import InvalidToken, MultiFernet
from starlette.responses import Response

from spawnmesh_console.domain.sign_in_attempt import SignInAttempt

_SECONDS = 600
_MAX_TARGET_CHARS = 1500  # With more, the cookie could be longer than browsers keep.
_PURPOSE = "sign-in attempt"  # The same keys seal the cookies of people who have signed in.


class AttemptCookie:
    """Seals attempts into cookies, and opens them again within ten minutes.

    A browser has one attempt. It is deleted with the first answer, and the provider takes a code
    once: the console itself remembers nothing.
    """

    def __init__(self, keys: MultiFernet, *, is_https: bool, port: int = 0) -> None:
        self._keys = keys
        self._is_https = is_https
        self.name = "__Host-spawnmesh-attempt" if is_https else f"spawnmesh_console_attempt_{port}"

    def keep(self, response: Response, attempt: SignInAttempt) -> None:
        """Put the attempt into the cookie."""
        sealed = self._keys.encrypt(json.dumps([_PURPOSE, *astuple(attempt)]).encode()).decode()
        response.set_cookie(
            self.name, sealed, max_age=_SECONDS, secure=self._is_https, httponly=True, samesite="lax"
        )

    def delete(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(self.name, secure=self._is_https, httponly=True, samesite="lax")

    def attempt_in(self, cookies: Mapping[str, str]) -> SignInAttempt | None:
        """Return the attempt; None without one, for one of another key, and for one that is old."""
        try:
            sealed = cookies.get(self.name, "").encode()
            purpose, *fields = json.loads(self._keys.decrypt(sealed, ttl=_SECONDS))
            return SignInAttempt(*fields) if purpose == _PURPOSE else None
        except (InvalidToken, ValueError, TypeError):
            return None


def new_attempt(target: str) -> SignInAttempt:
    """Return an attempt that leads to the path."""
    return SignInAttempt(
        state=secrets.token_urlsafe(32),
        nonce=secrets.token_urlsafe(32),
        code_verifier=secrets.token_urlsafe(48),
        target=target if len(target) <= _MAX_TARGET_CHARS else "/",
    )
