"""Where the public keys of the token issuers come from: a file that is re-read when it changes, or a URL that is fetched now and then."""

import asyncio
import concurrent.futures
import hashlib
import json
import threading
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

import jwt
import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import unavailable

_ALGORITHM = {"OKP": "EdDSA", "RSA": "RS256"}
_NAMING = {"OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
_URL_TIMEOUT_SECONDS = 5.0
_URL_FRESH_SECONDS = 300.0
_URL_RETRY_SECONDS = 10.0  # At most this often where there are keys: anyone can make up the id of an unknown one.
_FILE_LOOK_SECONDS = 0.5
_MAX_JWKS_BYTES = 1024 * 1024

log = structlog.get_logger()


class JwksUnreadable(Exception):
    """The set of keys is not one."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, the id it is listed under, and the one issuer that signs with it.

    The algorithm follows from the key, never from a token.
    """

    key_id: str
    issuer: str
    algorithm: str
    key: Any = field(repr=False)


Keys = Mapping[str, tuple[IssuerKey, ...]]
"""Keys by what a token may call them."""


def parse_jwks(text: str | bytes) -> dict[str, tuple[IssuerKey, ...]]:
    """Keys by the id that they are listed under, by their thumbprint, and by `<issuer>-1`, which is any key of that issuer.

    The last is what keys were called before they had names of their own. A key without `kid` or `iss`, or of a kind not used here, is left out.
    Raises JwksUnreadable.
    """
    try:
        members = json.loads(text)["keys"]
        keys: dict[str, tuple[IssuerKey, ...]] = {}
        for member in members:
            algorithm = _ALGORITHM.get(member.get("kty", ""))
            if algorithm and member.get("kid") and member.get("iss"):
                key = IssuerKey(member["kid"], member["iss"], algorithm, jwt.PyJWK(member, algorithm).key)
                for name in {key.key_id, thumbprint(member), first_key_id(key.issuer)}:
                    keys[name] = (*keys.get(name, ()), key)
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise JwksUnreadable("the set of keys is not valid JWKS") from error
    return keys


def thumbprint(member: Mapping[str, str]) -> str:
    """The name of a key of a set that follows from the key alone (RFC 7638)."""
    named = {name: member[name] for name in _NAMING[member["kty"]]}
    digest = hashlib.sha256(json.dumps(named, separators=(",", ":"), sort_keys=True).encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def first_key_id(issuer: str) -> str:
    """What an issuer calls a key of its own that has no other name."""
    return f"{issuer}-1"


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
                self._keys = _taken(parse_jwks(self._path.read_bytes()), self._keys, source="file")
                self._stamp = stamp
        except (OSError, JwksUnreadable):
            log.warning("jwks_unreadable", source="file")


class JwksUrl:
    """Keys of a URL, fetched at first use, when they are old, and for an unknown key id. When a fetch fails, the keys before stay."""

    def __init__(self, url: str, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._url = url
        self._monotonic = monotonic
        self._keys: Keys = {}
        self._began: float | None = None
        self._fetched: float | None = None
        self._ended_count = 0
        self._lock = asyncio.Lock()

    def keys(self) -> Keys:
        return self._keys

    async def refresh(self, *, unknown_key: bool) -> None:
        """Who has no key to go on with waits for the fetch that is under way, and shares what comes of it.

        Raises MeshError DEPENDENCY_UNAVAILABLE while there has never been a key.
        """
        needed = unknown_key or self._fetched is None
        if self._due(unknown_key) or (needed and self._lock.locked()):
            ended_count = self._ended_count
            async with self._lock:
                if self._ended_count == ended_count and self._due(unknown_key):
                    await self._fetch()
        if self._fetched is None:
            raise unavailable("jwks")

    def _due(self, unknown_key: bool) -> bool:
        if self._fetched is None or self._began is None:
            return True
        now = self._monotonic()
        if now - self._began < _URL_RETRY_SECONDS:
            return False
        return unknown_key or now - self._fetched >= _URL_FRESH_SECONDS

    async def _fetch(self) -> None:
        self._began = self._monotonic()
        try:
            async with asyncio.timeout(_URL_TIMEOUT_SECONDS):
                keys = parse_jwks(await self._downloaded())
            if self._fetched is None and not keys:
                raise JwksUnreadable("the set of keys has none that names its issuer")
            self._keys = _taken(keys, self._keys, source="url")
            self._fetched = self._monotonic()
        except (OSError, HTTPException, JwksUnreadable):
            log.warning("jwks_unreadable", source="url")
        self._ended_count += 1

    async def _downloaded(self) -> bytes:
        """By a thread that the end of the process does not wait for, as it would for one of the loop's: the URL may hang."""
        body: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        body.set_running_or_notify_cancel()

        def download() -> None:
            try:
                body.set_result(self._download())
            except (OSError, HTTPException) as error:
                body.set_exception(error)

        threading.Thread(target=download, name="jwks", daemon=True).start()
        return await asyncio.wrap_future(body)

    def _download(self) -> bytes:
        try:
            # The settings admit http and https alone.
            with urllib.request.urlopen(self._url, timeout=_URL_TIMEOUT_SECONDS) as response:  # noqa: S310
                body: bytes = response.read(_MAX_JWKS_BYTES)
                return body
        except urllib.error.HTTPError as error:
            error.close()
            raise


def _taken(keys: Keys, before: Keys, *, source: str) -> Keys:
    """The keys to go on with: those before where nothing changed. A change is logged, for whoever waits until all have heard of it."""
    if keys == before:
        return before
    log.info("jwks_taken", source=source, key_ids=sorted({key.key_id for several in keys.values() for key in several}))
    return keys
