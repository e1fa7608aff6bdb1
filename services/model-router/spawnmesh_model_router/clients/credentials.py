"""Read provider keys when they are needed. A key leaves this module only inside a Credential."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FINGERPRINT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, and the first digits of its SHA-256.

    A renewed key is another credential: it does not inherit a cooldown. `repr` hides the key.
    """

    secret: str = field(repr=False)
    fingerprint: str


class CredentialSource:
    """Reads the keys of references: from the environment, and from files, again when they
    change.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._variables: dict[str, tuple[str, Credential | None]] = {}
        self._files: dict[str, tuple[tuple[int, int, int], Credential | None]] = {}

    def read(self, reference: str) -> Credential | None:
        """Return the key of `env:NAME` or `file:/path`; None if there is none now."""
        kind, _, place = reference.partition(":")
        return self._from_file(place) if kind == "file" else self._from_environment(place)

    def _from_environment(self, name: str) -> Credential | None:
        text = self._environ.get(name, "")
        known = self._variables.get(name)
        if known is None or known[0] != text:
            known = self._variables[name] = (text, _credential(text))
        return known[1]

    def _from_file(self, path: str) -> Credential | None:
        file = Path(path)
        try:
            status = file.stat()
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._files.get(path)
            if known is None or known[0] != state:
                known = self._files[path] = (state, _credential(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            return None
        return known[1]


def _credential(text: str) -> Credential | None:
    secret = text.strip()
    if not secret.isascii() or not secret.isprintable() or not secret:
        return None  # Such a text cannot be sent in a header.
    return Credential(secret, hashlib.sha256(secret.encode()).hexdigest()[:_FINGERPRINT_DIGITS])
