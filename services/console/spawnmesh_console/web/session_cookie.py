"""The cookie of a person who has signed in: the sealed token. The console itself keeps nothing."""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from spawnmesh_runtime.oidc import OidcIssuer
from starlette.responses import Response

from spawnmesh_console.web.people import Person, TokenUnreadable, person_of

_MAX_VALUE_CHARS = 3900  # Browsers drop a cookie of more than 4,096 bytes with its name and attributes.
_MAX_PIECES = 3  # A token of 8,192 characters, the longest that the mesh reads, has room in them.


class SessionCookie:
    """Seals people into cookies, and opens them again.

    A sealed person is one cookie. A long one is several: `2.` before the first piece is their
    number, and further ones have names that end with `-2` and `-3`. With HTTPS the names have the
    prefix `__Host-`: no other host of the domain can set them.
    """

    def __init__(
        self, keys: MultiFernet, *, is_https: bool, port: int = 0, issuers: Sequence[OidcIssuer] = ()
    ) -> None:
        self._issuers = issuers
        self._keys = keys
        self._is_https = is_https
        # A browser sends the cookies of this machine to all of its ports: two consoles share none.
        self.name = "__Host-spawnmesh" if is_https else f"spawnmesh_console_{port}"

    def sign_in(self, response: Response, token: str) -> Person:
        """Put a new person into the cookie, and return the person. Raises TokenUnreadable."""
        person = person_of(token, secrets.token_urlsafe(24), self._issuers)
        sealed = self._keys.encrypt(json.dumps([person.token, person.form_key]).encode()).decode()
        pieces = [sealed[at : at + _MAX_VALUE_CHARS] for at in range(0, len(sealed), _MAX_VALUE_CHARS)]
        if len(pieces) > _MAX_PIECES:
            raise TokenUnreadable(f"the token is too long for cookies: it has {len(token)} characters")
        if len(pieces) > 1:
            pieces[0] = f"{len(pieces)}.{pieces[0]}"
        seconds = int((person.expire_time - datetime.now(UTC)).total_seconds())
        for name, piece in zip(self._names(), pieces, strict=False):
            response.set_cookie(
                name, piece, max_age=seconds, secure=self._is_https, httponly=True, samesite="lax"
            )
        self._delete(response, self._names()[len(pieces) :])
        return person

    def sign_out(self, response: Response) -> None:
        """Delete the cookie."""
        self._delete(response, self._names())

    def person_in(self, cookies: Mapping[str, str]) -> Person | None:
        """Return the person; None for a cookie of another key, and for a token that has expired."""
        count, dot, first = cookies.get(self.name, "").rpartition(".")
        if dot and count not in ("2", "3"):
            return None
        further = self._names()[1 : int(count or 1)]
        sealed = "".join([first, *(cookies.get(name, "") for name in further)])
        try:
            token, form_key = json.loads(self._keys.decrypt(sealed.encode()))
            return person_of(token, form_key, self._issuers)
        except (InvalidToken, ValueError, TypeError):
            return None

    def _names(self) -> list[str]:
        return [self.name, *(f"{self.name}-{number}" for number in range(2, _MAX_PIECES + 1))]

    def _delete(self, response: Response, names: list[str]) -> None:
        for name in names:
            response.delete_cookie(name, secure=self._is_https, httponly=True, samesite="lax")


def cookie_keys(file: Path | None) -> MultiFernet:
    """Return the keys of the file, or a new one. Raises SystemExit with one line."""
    if file is None:
        return MultiFernet([Fernet(Fernet.generate_key())])
    try:
        return MultiFernet([Fernet(line) for line in file.read_text().split()])
    except (OSError, ValueError):
        raise SystemExit(
            "console: CONSOLE_COOKIE_KEY_FILE cannot be read as keys, each 32 bytes in URL-safe base64"
        ) from None
