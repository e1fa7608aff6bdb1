"""Secrets of MCP servers, read when a run connects to one, and taken out of whatever a server says."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+", re.DOTALL)
_MARKER = "[$redacted:mcp_secret]"
_SHORTEST_TOLD_APART = 8  # A shorter text stands in any answer, and would be taken out of words.


class SecretMissing(Exception):
    """A reference leads to nothing. The text does not name it: it is shown to a model."""


def is_reference(text: str) -> bool:
    """Whether it is `env:NAME` or `file:/path`."""
    return _REFERENCE.fullmatch(text) is not None


def resolved(values: Mapping[str, str], environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """The values with references replaced by what they lead to, and a list of what these were.

    `environ` is where `env:` is looked up, if not in the process's own. Raises SecretMissing.
    """
    texts: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in values.items():
        texts[name] = value
        if is_reference(value):
            texts[name] = _read(value, os.environ if environ is None else environ)
            secrets.append(texts[name])
    return texts, secrets


def _read(reference: str, environ: Mapping[str, str]) -> str:
    kind, _, place = reference.partition(":")
    try:
        text = Path(place).read_text(encoding="utf-8") if kind == "file" else environ[place]
    except (OSError, UnicodeDecodeError, KeyError):
        raise SecretMissing from None
    secret = text.strip()
    if not secret or not secret.isascii() or not secret.isprintable():
        raise SecretMissing  # Such a text cannot be sent as a header, and is no key.
    return secret


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with a marker where one of the secrets stood, longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_TOLD_APART:
            text = text.replace(secret, _MARKER)
    return text
