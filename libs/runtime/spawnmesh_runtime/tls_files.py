"""Certificate, key and authority from mounted files that are renewed while the process runs."""

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
_Stamps = tuple[tuple[int, int, int], ...]

log = structlog.get_logger()


class TlsUnusable(Exception):
    """The TLS files are unusable. The text names the setting, not the content or the path."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The content of the files in PEM: certificate chain, key of its first certificate,
    authority.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authority: bytes | None
    expires: datetime
    """The time at which the first certificate of the chain expires."""


class TlsFiles:
    """The newest usable content of the files. It is thread-safe.

    Unusable files, such as a certificate without its new key, are logged once for each content. The
    last usable content then stays in use.
    """

    def __init__(self, cert_file: Path, key_file: Path, ca_file: Path | None) -> None:
        """Read the files. Raises SystemExit with one line if they are unusable."""
        self._files = (cert_file, key_file, *(() if ca_file is None else (ca_file,)))
        self._names = [str(file) for file in self._files]
        self._lock = threading.Lock()
        try:
            self._current_stamps: _Stamps | None = self._stamps()
            self._material = self._read()
        except TlsUnusable as error:
            raise SystemExit(str(error)) from None

    def current(self) -> TlsMaterial:
        """Return the current content: the same object while the files do not change.

        A call costs one `stat` for each file; changed files are read again.
        """
        with self._lock:
            try:
                stamps = self._stamps()
                if stamps != self._current_stamps:
                    # The stamp is taken before reading: the next call reads a change that happens
                    # in between.
                    self._current_stamps = stamps
                    self._take(self._read())
            except TlsUnusable as error:
                log.warning(
                    "tls_files_unusable", reason=str(error), expires=self._material.expires.isoformat()
                )
        return self._material

    def _take(self, fresh: TlsMaterial) -> None:
        if fresh != self._material:
            self._material = fresh
            log.info("tls_files_renewed", expires=fresh.expires.isoformat())

    def _stamps(self) -> _Stamps | None:
        """Return a stamp that changes with the files; None while a file is missing."""
        try:
            found = [os.stat(name) for name in self._names]
        except OSError:
            return None
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _read(self) -> TlsMaterial:
        try:
            chain, key, *authority = (file.read_bytes() for file in self._files)
        except OSError:
            raise TlsUnusable(
                "a TLS file cannot be read: check tls_cert_file, tls_key_file and tls_ca_file"
            ) from None
        leaf = _certificates("tls_cert_file", chain)[0]
        if _public_bytes(leaf) != _public_bytes_of_key(key):
            raise TlsUnusable("tls_key_file is not the key of the certificate in tls_cert_file")
        for one in authority:
            _certificates("tls_ca_file", one)
        return TlsMaterial(chain, key, authority[0] if authority else None, leaf.not_valid_after_utc)


def tls_files(settings: ProcessSettings) -> TlsFiles | None:
    """Return the TLS files of the settings; None for plaintext.

    Raises SystemExit with one line if the files are unusable.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)


def measure_expiry(meter: Meter, files: TlsFiles) -> None:
    """Report the seconds until the presented certificate expires; negative once it has expired."""

    def remaining(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation((files.current().expires - utc_now()).total_seconds())]

    meter.create_observable_gauge(
        EXPIRES_IN, [remaining], unit="s", description="Time until the presented certificate expires."
    )


def _certificates(setting: str, pem: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise TlsUnusable(f"{setting} is not a certificate in PEM") from None
    if len(found) != pem.count(_BEGIN):  # The parser skips a truncated certificate.
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
