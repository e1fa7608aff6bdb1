"""Certificate, key and authority from mounted files, which are renewed while the process runs."""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from spawnmesh_core.clock import utc_now

from spawnmesh_runtime.settings import ProcessSettings

EXPIRES_IN = "spawnmesh.tls.certificate.expires_in"
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_Seen = tuple[tuple[int, int, int], ...]

log = structlog.get_logger()


class TlsUnusable(Exception):
    """Files that no connection can be made with; the text names the setting and nothing of the content or the path."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What one read of the files gave, all in PEM: a chain whose first certificate belongs to the key, and whom to trust."""

    chain: bytes
    key: bytes = field(repr=False)
    authority: bytes | None
    expires: datetime
    """When the first certificate of the chain does."""


class TlsFiles:
    """The newest usable content of the files. May be asked from several threads.

    Files that cannot be used, such as a certificate whose key is not written yet, are logged once and change nothing: the last good content
    holds until there is better.
    """

    def __init__(self, cert_file: Path, key_file: Path, ca_file: Path | None) -> None:
        """Ends the process with one line where the files cannot be used, as there is nothing to go on with."""
        self._files = (cert_file, key_file, *(() if ca_file is None else (ca_file,)))
        self._names = [
            str(file) for file in self._files
        ]  # Each call asks for their `stat`, at a third of the price of a Path's.
        self._turn = threading.Lock()
        try:
            self._seen: _Seen | None = self._look()
            self._material = self._read()
        except TlsUnusable as error:
            raise SystemExit(str(error)) from None

    def current(self) -> TlsMaterial:
        """The same object as long as nothing changed. Costs one `stat` a file; reads only what was replaced or rewritten."""
        with self._turn:
            try:
                seen = self._look()
                if seen != self._seen:
                    # Looked at before it is read: what changes in between is read again the next time.
                    self._seen = seen
                    self._take(self._read())
            except TlsUnusable as error:
                log.warning("tls_files_unusable", reason=str(error), expires=self._material.expires.isoformat())
        return self._material

    def _take(self, fresh: TlsMaterial) -> None:
        if fresh != self._material:
            self._material = fresh
            log.info("tls_files_renewed", expires=fresh.expires.isoformat())

    def _look(self) -> _Seen | None:
        """What tells one content of the files from the next; None while one of them is away."""
        try:
            found = [os.stat(name) for name in self._names]
        except OSError:
            return None
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _read(self) -> TlsMaterial:
        try:
            chain, key, *authority = (file.read_bytes() for file in self._files)
        except OSError:
            raise TlsUnusable("a TLS file cannot be read: check tls_cert_file, tls_key_file and tls_ca_file") from None
        leaf = _certificates("tls_cert_file", chain)[0]
        if _public_bytes(leaf) != _public_bytes_of_key(key):
            raise TlsUnusable("tls_key_file is not the key of the certificate in tls_cert_file")
        for one in authority:
            _certificates("tls_ca_file", one)
        return TlsMaterial(chain, key, authority[0] if authority else None, leaf.not_valid_after_utc)


def tls_files(settings: ProcessSettings) -> TlsFiles | None:
    """None where the settings name no files, which means plaintext. Ends the process with one line where they cannot be used."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)


def measure_expiry(meter: Meter, files: TlsFiles) -> None:
    """Seconds until the certificate that is shown to peers expires, negative once it has; looked at whenever metrics are collected."""

    def left(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation((files.current().expires - utc_now()).total_seconds())]

    meter.create_observable_gauge(
        EXPIRES_IN, [left], unit="s", description="Time until the certificate that is shown to peers expires."
    )


def _certificates(setting: str, pem: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise TlsUnusable(f"{setting} is not a certificate in PEM") from None
    if len(found) != pem.count(_BEGIN):  # The parser passes over one that is cut off.
        raise TlsUnusable(f"{setting} ends within a certificate")
    return found


def _public_bytes(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        raise TlsUnusable("tls_cert_file holds a certificate with a key of an unknown kind") from None


def _public_bytes_of_key(pem: bytes) -> bytes:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TlsUnusable("tls_key_file is not a private key in PEM without a password") from None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
