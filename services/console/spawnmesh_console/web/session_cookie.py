"""The cookie of a person who has signed in: the sealed token. The console itself keeps nothing."""

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from starlette.responses import Response

from spawnmesh_console.web.people import Person, TokenUnreadable, person_of

_MAX_COOKIE_BYTES = 3900  # Browsers drop a cookie of more than 4,096 bytes with its name and attributes.


class SessionCookie:
    """Seals people into cookies, and opens them again.

    With HTTPS the name has the prefix `__Host-`: no other host of the domain can set it.
    """

    def __init__(self, keys: MultiFernet, *, is_https: bool) -> None:
        self._keys = keys
        self._is_https = is_https
        self.name = "__Host-spawnmesh" if is_https else "spawnmesh_console"

    def sign_in(self, response: Response, token: str) -> None:
        """Put a new person into the cookie. Raises TokenUnreadable."""
        person = person_of(token, secrets.token_urlsafe(24))
        sealed = self._keys.encrypt(json.dumps([person.token, person.form_key]).encode()).decode()
        if len(sealed) > _MAX_COOKIE_BYTES:
            raise TokenUnreadable(f"the token is too long for a cookie: it has {len(token)} characters")
        seconds = int((person.expire_time - datetime.now(UTC)).total_seconds())
        response.set_cookie(
            self.name, sealed, max_age=seconds, secure=self._is_https, httponly=True, samesite="lax"
        )

    def sign_out(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(self.name, secure=self._is_https, httponly=True, samesite="lax")

    def person_in(self, sealed: str) -> Person | None:
        """Return the person; None for a cookie of another key, and for a token that has expired."""
        try:
            token, form_key = json.loads(self._keys.decrypt(sealed.encode()))
            return person_of(token, form_key)
        except (InvalidToken, ValueError):
            return None


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
