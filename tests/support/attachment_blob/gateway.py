"""A proxy of S3 and STS on which a test can refuse, delay or change calls."""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from spawnmesh_core.clock import utc_now
from spawnmesh_devstack.s3 import S3Endpoint

_EXPIRATION = re.compile(rb"<Expiration>[^<]*</Expiration>")
_NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding")


@dataclass
class Gateway:
    """The proxy's rules. `endpoint` is the S3 endpoint of its users."""

    endpoint: S3Endpoint
    refused_keys: dict[str, str] = field(default_factory=dict)
    """S3 error codes for deletes, by object key."""
    trickled_keys: set[str] = field(default_factory=set)
    """Keys whose objects are sent one byte at a time, with pauses, until the gateway is closed."""
    trickled_count: int = 0
    """Objects that were begun to be sent slowly."""
    puts_go_on: threading.Event = field(default_factory=threading.Event)
    """Puts wait until this is set. It is set at the start."""
    put_came: threading.Event = field(default_factory=threading.Event)
    """Set when a put arrives. A test clears it."""
    put_paths: list[str] = field(default_factory=list)
    """The paths of the puts that have arrived, whether or not they wait."""
    held_part: int = 0
    """The number of the parts of multipart uploads that wait until `part_goes_on` is set."""
    part_goes_on: threading.Event = field(default_factory=threading.Event)
    refused_part: int = 0
    """The number of the parts that fail, after they have waited."""
    completion: bytes = b""
    """The body, with status 200, for a completion of a multipart upload. Empty passes it on."""
    sts_is_away: bool = False
    credentials_last: timedelta | None = None
    """The expiration of new credentials in STS responses."""
    sts_calls: int = 0

    def refuses(self, method: str, path: str) -> str:
        """Return the S3 error code for the request. Empty passes it on."""
        return self.refused_keys.get(_key_in(path), "") if method == "DELETE" else ""

    def trickles(self, method: str, path: str) -> bool:
        """Return whether the request reads an object that is sent slowly."""
        return method == "GET" and _key_in(path) in self.trickled_keys

    def completes(self, method: str, path: str) -> bool:
        """Return whether the request completes a multipart upload."""
        return method == "POST" and "uploadId=" in urlsplit(path).query

    def parts_put(self) -> dict[str, list[int]]:
        """Return the numbers of the parts whose puts have arrived, by the key of their object."""
        found: dict[str, list[int]] = {}
        for path in self.put_paths:
            if number := _part_number_in(path):
                found.setdefault(_key_in(path), []).append(number)
        return found

    def changed(self, body: bytes) -> bytes:
        """Return the response of STS with the changed expiration."""
        if self.credentials_last is None:
            return body
        end = utc_now() + self.credentials_last
        return _EXPIRATION.sub(f"<Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration>".encode(), body)


def _key_in(path: str) -> str:
    return unquote(urlsplit(path).path).lstrip("/").partition("/")[2]


def _part_number_in(path: str) -> int:
    """Return the number of the part that a request puts; 0 for other requests."""
    return int(parse_qs(urlsplit(path).query).get("partNumber", ["0"])[0])


@contextmanager
def open_gateway(behind: S3Endpoint) -> Iterator[Gateway]:
    """Serve until the block ends."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if self.command == "PUT":
                gateway.put_paths.append(self.path)
                gateway.put_came.set()
                gateway.puts_go_on.wait(600)
                if (part := _part_number_in(self.path)) and part == gateway.held_part:
                    gateway.part_goes_on.wait(600)
                if part and part == gateway.refused_part:
                    return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            is_sts = self.command == "POST" and b"Action=AssumeRole" in body
            if is_sts:
                gateway.sts_calls += 1
                if gateway.sts_is_away:
                    return self._answer(503, b"")
            code = gateway.refuses(self.command, self.path)
            if code:
                return self._answer(403, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
            if gateway.completion and gateway.completes(self.command, self.path):
                return self._answer(200, gateway.completion)
            connection = http.client.HTTPConnection(behind.endpoint, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                found = connection.getresponse()
                answer = found.read()
                headers = {
                    name: value for name, value in found.getheaders() if name.lower() not in _NOT_PASSED_ON
                }
            finally:
                connection.close()
            if self.command == "HEAD":  # It has no body with a known length.
                headers["Content-Length"] = found.getheader("Content-Length", "0")
            if gateway.trickles(self.command, self.path):
                return self._trickle(found.status, answer)
            return self._answer(found.status, gateway.changed(answer) if is_sts else answer, headers)

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response_only(status)
            for name, value in (headers or {"Content-Type": "application/xml"}).items():
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _trickle(self, status: int, body: bytes) -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.close_connection = True
            gateway.trickled_count += 1
            with suppress(OSError):  # The reader may have closed the connection.
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    if is_over.wait(0.5):
                        return

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # Clients keep their connections open.

    with Server(("127.0.0.1", 0), Handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        gateway = Gateway(replace(behind, endpoint=address, sts_endpoint=f"http://{address}"))
        gateway.puts_go_on.set()
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield gateway
        finally:
            is_over.set()
            gateway.puts_go_on.set()
            gateway.part_goes_on.set()
            server.shutdown()
            serving.join()
