"""Certificate authorities of the tests, and the three files that a process mounts."""

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate for loopback with its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Authority:
    def __init__(self, name: str) -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._begun(self._name, self._key.public_key(), timedelta(days=90))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def leaf(self, name: str, *, holds: timedelta = timedelta(days=30)) -> Leaf:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        made = self._begun(_named(name), key.public_key(), holds)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Leaf(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, holds: timedelta
    ) -> x509.CertificateBuilder:
        end = datetime.now(UTC) + holds
        return x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), end - timedelta(days=400), end
        )


@dataclass(frozen=True, slots=True)
class Mounted:
    """`tls.crt`, `tls.key` and `ca.crt` in a folder, with the names of the settings."""

    folder: Path

    def put(self, leaf: Leaf, *trusted: Authority) -> None:
        self.folder.mkdir(exist_ok=True)
        self.write("tls.key", leaf.key)
        self.write("tls.crt", leaf.certificate)
        self.write("ca.crt", b"".join(authority.pem for authority in trusted))

    def write(self, name: str, content: bytes) -> None:
        """Replace the files atomically, as Kubernetes does, or one after the other, as
        it does not.
        """
        half = self.folder / f"{name}.half"
        half.write_bytes(content)
        half.rename(self.folder / name)

    @property
    def settings(self) -> dict[str, Path]:
        return {
            "tls_cert_file": self.folder / "tls.crt",
            "tls_key_file": self.folder / "tls.key",
            "tls_ca_file": self.folder / "ca.crt",
        }
