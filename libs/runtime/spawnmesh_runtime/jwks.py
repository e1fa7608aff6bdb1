"""Where the public keys of the token issuers come from: a file that is re-read when it changes, or a URL that is fetched now and then."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jwt
import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import unavailable

_ALGORITHM = {"OKP": "EdDSA", "RSA": "RS256"}
_URL_TIMEOUT_SECONDS = 5.0
_URL_FRESH_SECONDS = 300.0
_URL_RETRY_SECONDS = 10.0  # At most this often for an unknown key id: anyone can make one up.
_FILE_LOOK_SECONDS = 0.5
_MAX_JWKS_BYTES = 1024 * 1024

log = structlog.get_logger()


class JwksUnreadable(Exception):
    """The set of keys is not one."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key and the one issuer that signs with it. The algorithm follows from the key, never from a token."""

    issuer: str
    algorithm: str
    key: Any = field(repr=False)


Keys = Mapping[str, IssuerKey]


def parse_jwks(text: str | bytes) -> dict[str, IssuerKey]:
    """Keys by key id. A key without `kid` or `iss`, or of a kind not used here, is left out. Raises JwksUnreadable."""
    try:
        members = json.loads(text)["keys"]
        keys: dict[str, IssuerKey] = {}
        for member in members:
            algorithm = _ALGORITHM.get(member.get("kty", ""))
            if algorithm and member.get("kid") and member.get("iss"):
                keys[member["kid"]] = IssuerKey(member["iss"], algorithm, jwt.PyJWK(member, algorithm).key)
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise JwksUnreadable("the set of keys is not valid JWKS") from error
    return keys


class KeySource(Protocol):
    """Keys at hand, without waiting."""

    def keys(self) -> Keys:
        """The same object as long as nothing changed."""

    async def refresh(self, *, unknown_key: bool) -> None:
        """Gets newer keys where that takes waiting and is due."""


class JwksFile:
    """Keys of a file. When a changed file cannot be read, the keys before stay. Raises JwksUnreadable or OSError at first."""

    def __init__(self, path: Path, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._path = path
        self._monotonic = monotonic
        self._looked = monotonic()
        self._stamp = self._stat()
        self._keys: Keys = parse_jwks(path.read_bytes())

    def keys(self) -> Keys:
        if self._monotonic() - self._looked >= _FILE_LOOK_SECONDS:
            self._looked = self._monotonic()
            self._read_if_changed()
        return self._keys

    async def refresh(self, *, unknown_key: bool) -> None:
        if unknown_key:
            self._read_if_changed()

    def _stat(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read_if_changed(self) -> None:
        try:
            stamp = self._stat()
            if stamp != self._stamp:
                self._keys = parse_jwks(self._path.read_bytes())
                self._stamp = stamp
        except (OSError, JwksUnreadable):
            log.warning("jwks_unreadable", source="file")


class JwksUrl:
    """Keys of a URL, fetched at first use, when they are old, and for an unknown key id. When a fetch fails, the keys before stay."""

    def __init__(self, url: str, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._url = url
        self._monotonic = monotonic
        self._keys: Keys = {}
        self._tried: float | None = None
        self._fetched: float | None = None
        self._lock = asyncio.Lock()

    def keys(self) -> Keys:
        return self._keys

    async def refresh(self, *, unknown_key: bool) -> None:
        """Raises MeshError DEPENDENCY_UNAVAILABLE while there has never been a key."""
        if self._due(unknown_key):
            async with self._lock:
                if self._due(unknown_key):
                    await self._fetch()
        if self._fetched is None:
            raise unavailable("jwks")

    def _due(self, unknown_key: bool) -> bool:
        now = self._monotonic()
        if self._tried is not None and now - self._tried < _URL_RETRY_SECONDS:
            return False
        return unknown_key or self._fetched is None or now - self._fetched >= _URL_FRESH_SECONDS

    async def _fetch(self) -> None:
        self._tried = self._monotonic()
        try:
            self._keys = parse_jwks(await asyncio.to_thread(self._download))
            self._fetched = self._monotonic()
        except (OSError, JwksUnreadable):
            log.warning("jwks_unreadable", source="url")

    def _download(self) -> bytes:
        # The settings admit http and https alone.
        with urllib.request.urlopen(self._url, timeout=_URL_TIMEOUT_SECONDS) as response:  # noqa: S310
            body: bytes = response.read(_MAX_JWKS_BYTES)
            return body
