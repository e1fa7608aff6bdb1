"""Provider keys, read when they are needed. A key leaves this module only in a Credential, which does not show it."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_FINGERPRINT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, and a short digest of it by which it is told from others: a renewed key is another credential, and does not inherit a rest."""

    secret: str = field(repr=False)
    fingerprint: str


class CredentialSource:
    """Reads the keys that references name: from the environment (the process's own, if none is given), and from files, anew when they change."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(os.environ) if environ is None else environ  # Nobody changes a process's own.
        self._variables: dict[str, tuple[str, Credential | None]] = {}
        self._files: dict[str, tuple[tuple[int, int, int], Credential | None]] = {}

    def read(self, reference: str) -> Credential | None:
        """The key that `env:NAME` or `file:/path` names; None where there is none now."""
        kind, _, place = reference.partition(":")
        return self._of_file(place) if kind == "file" else self._of_environment(place)

    def _of_environment(self, place: str) -> Credential | None:
        text = self._environ.get(place, "")
        known = self._variables.get(place)
        if known is None or known[0] != text:
            known = self._variables[place] = (text, _credential(text))
        return known[1]

    def _of_file(self, place: str) -> Credential | None:
        file = Path(place)
        try:
            status = file.stat()
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._files.get(place)
            if known is None or known[0] != state:
                known = self._files[place] = (state, _credential(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            return None
        return known[1]


def _credential(text: str) -> Credential | None:
    secret = text.strip()
    if not secret.isascii() or not secret.isprintable() or not secret:
        return None  # Such a text cannot be sent as a header, and is no key.
    return Credential(secret, hashlib.sha256(secret.encode()).hexdigest()[:_FINGERPRINT_DIGITS])
