"""Certificate, key and authority from mounted files that are renewed while the process runs."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

_Stamps = tuple[tuple[int, int, int], ...]


class TlsUnusable(Exception):
    """The TLS files are unusable. The text names the setting, not the content or the path."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The content of the files in PEM: certificate chain, key of its first certificate,
    authority. Chain and key are empty for a client without a certificate.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authority: bytes | None


class ServerTls:
    """TLS in which only the server has a certificate, for a client that sends none."""

    def __init__(self, ca_file: Path | None) -> None:
        """Read the authority that the client trusts; without one, it trusts those of the system.

        Raises TlsUnusable.
        """
        try:
            self._material = TlsMaterial(b"", b"", None if ca_file is None else ca_file.read_bytes())
        except OSError:
            raise TlsUnusable("a TLS file cannot be read: check tls_ca_file") from None

    def current(self) -> TlsMaterial:
        """Return the content that was read at the start."""
        return self._material


class TlsFiles:
    """The newest usable content of the files. It is thread-safe.

    A subclass defines which content is usable. If the files become unusable, such as a certificate
    without its new key, the last usable content stays in use.
    """

    def __init__(self, cert_file: Path, key_file: Path, ca_file: Path | None) -> None:
        """Read the files. Raises TlsUnusable."""
        self.paths = (cert_file, key_file, *(() if ca_file is None else (ca_file,)))
        self._names = [str(file) for file in self.paths]
        self._lock = threading.Lock()
        self._current_stamps: _Stamps | None = self._stamps()
        self._material = self._read()

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
                self.report_unusable(error)
        return self._material

    def check(self, material: TlsMaterial) -> None:
        """Raise TlsUnusable for content that no connection can use."""
        raise NotImplementedError

    def report_renewed(self) -> None:
        """Report that the files have a new content, which is in use from now on."""

    def report_unusable(self, error: TlsUnusable) -> None:
        """Report that the files became unusable. This happens once for each content."""

    def _take(self, fresh: TlsMaterial) -> None:
        if fresh != self._material:
            self._material = fresh
            self.report_renewed()

    def _stamps(self) -> _Stamps | None:
        """Return a stamp that changes with the files; None while a file is missing."""
        try:
            found = [os.stat(name) for name in self._names]
        except OSError:
            return None
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _read(self) -> TlsMaterial:
        try:
            chain, key, *authority = (file.read_bytes() for file in self.paths)
        except OSError:
            raise TlsUnusable(
                "a TLS file cannot be read: check tls_cert_file, tls_key_file and tls_ca_file"
            ) from None
        material = TlsMaterial(chain, key, authority[0] if authority else None)
        self.check(material)
        return material
