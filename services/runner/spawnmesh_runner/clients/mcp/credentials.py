"""Secrets of MCP servers: read when a run connects, and redacted from what a server says."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+", re.DOTALL)
_MARKER = "[$redacted:mcp_secret]"
# A shorter text occurs in any answer, so its redaction would damage other words.
_SHORTEST_REDACTED = 8


class SecretMissing(Exception):
    """A reference leads to nothing.

    The text does not name the reference, since a model reads it.
    """


def is_reference(text: str) -> bool:
    """Return True for `env:NAME` and `file:/path`."""
    return _REFERENCE.fullmatch(text) is not None


def resolve_secrets(
    values: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the values with references resolved, and a list of the resolved texts.

    `environ` replaces the process's own environment for `env:`. Raises SecretMissing.
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
        raise SecretMissing  # Such a text cannot be sent as a header, so it is no key.
    return secret


def redact_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with a marker in place of each secret, longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_REDACTED:
            text = text.replace(secret, _MARKER)
    return text
