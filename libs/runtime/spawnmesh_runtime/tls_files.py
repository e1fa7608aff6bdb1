"""The TLS files of a process: checked, logged and measured."""

from collections.abc import Iterable
from datetime import datetime

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from spawnmesh_calls.tls_files import TlsFiles, TlsMaterial, TlsUnusable
from spawnmesh_core.clock import utc_now

from spawnmesh_runtime.settings import ProcessSettings

EXPIRES_IN = "spawnmesh.tls.certificate.expires_in"
_BEGIN = b"-----BEGIN CERTIFICATE-----"

log = structlog.get_logger()


class LoggedTlsFiles(TlsFiles):
    """TLS files whose renewals, and unusable contents, are logged."""

    expires: datetime
    """The time at which the first certificate of the chain expires."""

    def check(self, material: TlsMaterial) -> None:
        """Raise TlsUnusable unless each part is complete and the key is the certificate's."""
        leaf = _certificates("tls_cert_file", material.chain)[0]
        if _public_bytes(leaf) != _public_bytes_of_key(material.key):
            raise TlsUnusable("tls_key_file is not the key of the certificate in tls_cert_file")
        if material.authority is not None:
            _certificates("tls_ca_file", material.authority)
        self.expires = leaf.not_valid_after_utc

    def report_renewed(self) -> None:
        """Log the renewal."""
        log.info("tls_files_renewed", expires=self.expires.isoformat())

    def report_unusable(self, error: TlsUnusable) -> None:
        """Log the reason."""
        log.warning("tls_files_unusable", reason=str(error), expires=self.expires.isoformat())


def tls_files(settings: ProcessSettings) -> LoggedTlsFiles | None:
    """Return the TLS files of the settings; None for plaintext.

    Raises SystemExit with one line if the files are unusable.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    try:
        return LoggedTlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    except TlsUnusable as error:
        raise SystemExit(str(error)) from None


def measure_expiry(meter: Meter, files: LoggedTlsFiles) -> None:
    """Report the seconds until the presented certificate expires; negative once it has expired."""

    def remaining(options: CallbackOptions) -> Iterable[Observation]:
        files.current()  # Read renewed files.
        return [Observation((files.expires - utc_now()).total_seconds())]

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
