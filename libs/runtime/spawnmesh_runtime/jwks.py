"""The public keys of the token issuers, from a file or a URL.

A changed file is read again. A URL is fetched at first use, regularly, and for an unknown key id.
"""

import asyncio
import concurrent.futures
import hashlib
import json
import threading
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import jwt
import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import unavailable

_ALGORITHM = {"OKP": "EdDSA", "RSA": "RS256", "EC": "ES256"}
_NAMING = {"OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
_URL_TIMEOUT_SECONDS = 5.0
_URL_FRESH_SECONDS = 300.0
# The interval of fetches if there are keys: anyone can invent an unknown key id.
_URL_RETRY_SECONDS = 10.0
_FILE_POLL_SECONDS = 0.5
_MAX_BYTES = 1024 * 1024
_MAX_KEYS = 100
_MAX_KEYS_OF_ONE_ID = 8  # A token is verified with each of them.
_CHUNK_BYTES = 64 * 1024
_GIVEN_UP_SECONDS = 60.0
_MAX_HANGING = 4

log = structlog.get_logger()


def check_https(url: str) -> str:
    """Return the URL. Raise ValueError for one without HTTPS whose host is not this machine: anyone
    on the way could replace the keys.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        raise ValueError("must start with https:// unless its host is this machine")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class JwksUnreadable(Exception):
    """The JWKS is malformed or has no usable key."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, its id, and the only issuer that signs with it.

    The algorithm follows from the key, never from a token.
    """

    key_id: str
    issuer: str
    algorithm: str
    key: Any = field(repr=False)


Keys = Mapping[str, tuple[IssuerKey, ...]]
"""Keys by key id. Several issuers may use one id."""


def parse_jwks(text: str | bytes) -> dict[str, tuple[IssuerKey, ...]]:
    """Return the keys by key id.

    Keys without `kid` or `iss`, of other types, and for other purposes are ignored. Raises
    JwksUnreadable.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JwksUnreadable("the set of keys is not valid JWKS") from error
    return _issuer_keys(document)


def _issuer_keys(document: Any, only_issuer: str = "") -> dict[str, tuple[IssuerKey, ...]]:
    """Return the keys by key id. All are keys of `only_issuer`, if one is given."""
    try:
        members = document["keys"]
        if len(members) > _MAX_KEYS:
            raise JwksUnreadable(f"the set has more than {_MAX_KEYS} keys")
        keys: dict[str, tuple[IssuerKey, ...]] = {}
        for member in members:
            algorithm = _algorithm_of(member)
            issuer = only_issuer or member.get("iss")
            if algorithm and member.get("kid") and issuer:
                key = IssuerKey(member["kid"], issuer, algorithm, jwt.PyJWK(member, algorithm).key)
                keys[key.key_id] = (*keys.get(key.key_id, ()), key)
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise JwksUnreadable("the set of keys is not valid JWKS") from error
    if any(len(several) > _MAX_KEYS_OF_ONE_ID for several in keys.values()):
        raise JwksUnreadable(f"more than {_MAX_KEYS_OF_ONE_ID} keys have one id")
    return keys


def _algorithm_of(member: Mapping[str, Any]) -> str:
    """Return the one algorithm for which the key is used here; empty for a key of another use."""
    algorithm = _ALGORITHM.get(member.get("kty", ""), "")
    is_other_curve = algorithm == "ES256" and member.get("crv") != "P-256"
    if is_other_curve or member.get("use", "sig") != "sig" or member.get("alg", algorithm) != algorithm:
        return ""
    return algorithm


def thumbprint(member: Mapping[str, str]) -> str:
    """Return the thumbprint of a key (RFC 7638), a name that follows from the key alone."""
    named = {name: member[name] for name in _NAMING[member["kty"]]}
    digest = hashlib.sha256(json.dumps(named, separators=(",", ":"), sort_keys=True).encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def default_key_id(issuer: str) -> str:
    """Return the key id of a key file without a `kid:` line."""
    return f"{issuer}-1"


class KeySource(Protocol):
    """A source of keys that are available without waiting."""

    def keys(self) -> Keys:
        """Return the current keys: the same object while they do not change."""

    async def refresh(self, *, unknown_key: bool) -> None:
        """Fetch newer keys if that is due and requires waiting."""


class JwksFile:
    """Keys of a file. If a changed file cannot be read, the previous keys stay valid.

    The constructor raises JwksUnreadable or OSError.
    """

    def __init__(self, path: Path, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._path = path
        self._monotonic = monotonic
        self._checked = monotonic()
        self._stamp = self._stat()
        self._keys: Keys = parse_jwks(path.read_bytes())

    def keys(self) -> Keys:
        if self._monotonic() - self._checked >= _FILE_POLL_SECONDS:
            self._checked = self._monotonic()
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
                self._keys = _updated(parse_jwks(self._path.read_bytes()), self._keys, source="file")
                self._stamp = stamp
        except (OSError, JwksUnreadable):
            log.warning("jwks_unreadable", source="file")


class JwksUrl:
    """Keys of a URL, fetched at first use, when they are old, and for an unknown key id.

    If a fetch fails, the previous keys stay valid. If an issuer is given, all keys are its own, as
    in the JWKS of an OpenID Connect issuer.
    """

    def __init__(self, url: str, *, issuer: str = "", monotonic: Monotonic = monotonic_seconds) -> None:
        self._issuer = issuer
        self._url = url
        self._document: concurrent.futures.Future[Any] | None = None
        self._document_began = 0.0
        self._hanging: list[concurrent.futures.Future[Any]] = []
        self._monotonic = monotonic
        self._keys: Keys = {}
        self._began: float | None = None
        self._fetched: float | None = None
        self._fetch_count = 0
        self._lock = asyncio.Lock()

    def keys(self) -> Keys:
        return self._keys

    def read(self, document: Any) -> Keys:
        """Return the usable keys of a JSON document. Raises JwksUnreadable."""
        return _issuer_keys(document, self._issuer)

    async def refresh(self, *, unknown_key: bool) -> None:
        """Fetch the keys if that is due.

        Callers without a usable key share the fetch that is running.

        Raises MeshError DEPENDENCY_UNAVAILABLE while there has never been a key.
        """
        needed = unknown_key or self._fetched is None
        if self._due(unknown_key) or (needed and self._lock.locked()):
            fetch_count = self._fetch_count
            async with self._lock:
                if self._fetch_count == fetch_count and self._due(unknown_key):
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
                keys = self.read(await self._download())
            if self._fetched is None and not keys:
                raise JwksUnreadable("the set of keys has none that names its issuer")
            self._keys = _updated(keys, self._keys, source="url")
            self._fetched = self._monotonic()
        except (OSError, HTTPException, ValueError, RecursionError, JwksUnreadable):
            log.warning("jwks_unreadable", source="url")
        self._fetch_count += 1

    async def _download(self) -> Any:
        """Return the JSON document of the URL.

        It is fetched in a daemon thread: the process does not wait for it at its end. The URL may
        hang. A later call waits for what an earlier one fetches, and gives it up after a while:
        there are few such threads.
        """
        now = self._monotonic()
        self._hanging = [document for document in self._hanging if not document.done()]
        is_given_up = now - self._document_began > _GIVEN_UP_SECONDS and len(self._hanging) < _MAX_HANGING
        if self._document is None or self._document.done() or is_given_up:
            self._document, self._document_began = _start_fetch(self._url), now
            self._hanging.append(self._document)
        return await asyncio.wrap_future(self._document)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
_HEADERS = {"Accept": "application/jwk-set+json, application/json;q=0.9"}


def _start_fetch(url: str) -> concurrent.futures.Future[Any]:
    document: concurrent.futures.Future[Any] = concurrent.futures.Future()
    document.set_running_or_notify_cancel()

    def fetch() -> None:
        try:
            document.set_result(_document_at(url))
        except BaseException as error:  # noqa: BLE001 - it is raised where the document is awaited
            document.set_exception(error)

    threading.Thread(target=fetch, name="jwks", daemon=True).start()
    return document


def _document_at(url: str) -> Any:
    """Return the JSON document of the URL, which an issuer serves that is not trusted with more.

    Redirects are not followed: they could lead to keys in plain text. Raises OSError,
    HTTPException, ValueError or RecursionError if there is none, and JwksUnreadable if it is too
    large.
    """
    end = monotonic_seconds() + _URL_TIMEOUT_SECONDS
    read = bytearray()
    asked = urllib.request.Request(url, headers=_HEADERS)  # noqa: S310 - of the settings
    with _OPENER.open(asked, timeout=_URL_TIMEOUT_SECONDS) as response:
        while chunk := response.read1(_CHUNK_BYTES):
            read += chunk
            if len(read) > _MAX_BYTES:
                raise JwksUnreadable(f"the set of keys has more than {_MAX_BYTES} bytes")
            if monotonic_seconds() > end:
                raise TimeoutError
    return json.loads(read)


def _updated(keys: Keys, before: Keys, *, source: str) -> Keys:
    """Return the new keys, or the previous object if they are equal.

    A change is logged: an operator who rotates keys waits for this event from every process.
    """
    if keys == before:
        return before
    log.info(
        "jwks_updated",
        source=source,
        key_ids=sorted({key.key_id for several in keys.values() for key in several}),
    )
    return keys
