"""A way to the real S3 and STS on which a test lets some calls fail, as a bucket's owner or an operator of S3 could."""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from spawnmesh_core.clock import utc_now
from spawnmesh_devstack.s3 import S3Endpoint

_EXPIRATION = re.compile(rb"<Expiration>[^<]*</Expiration>")
_NOT_PASSED_ON = ("connection", "content-length", "transfer-encoding")


@dataclass
class Gateway:
    """What gets through. `endpoint` is the S3 of who goes this way."""

    endpoint: S3Endpoint
    refused_keys: dict[str, str] = field(default_factory=dict)
    """What is answered to who deletes an object: a code of S3, by the object's key."""
    sts_is_away: bool = False
    credentials_last: timedelta | None = None
    """What STS is made to say of new credentials."""
    sts_calls: int = 0

    def refuses(self, method: str, path: str) -> str:
        """The code of S3 that the request is answered with; empty lets it through."""
        key = unquote(urlsplit(path).path).lstrip("/").partition("/")[2]
        return self.refused_keys.get(key, "") if method == "DELETE" else ""

    def changed(self, body: bytes) -> bytes:
        """The answer of STS as it is passed on."""
        if self.credentials_last is None:
            return body
        end = utc_now() + self.credentials_last
        return _EXPIRATION.sub(f"<Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration>".encode(), body)


@contextmanager
def open_gateway(behind: S3Endpoint) -> Iterator[Gateway]:
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            is_sts = self.command == "POST" and b"Action=AssumeRole" in body
            if is_sts:
                gateway.sts_calls += 1
                if gateway.sts_is_away:
                    return self._answer(503, b"")
            code = gateway.refuses(self.command, self.path)
            if code:
                return self._answer(403, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
            connection = http.client.HTTPConnection(behind.endpoint, timeout=20)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                found = connection.getresponse()
                answer = found.read()
                headers = {name: value for name, value in found.getheaders() if name.lower() not in _NOT_PASSED_ON}
            finally:
                connection.close()
            return self._answer(found.status, gateway.changed(answer) if is_sts else answer, headers)

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response_only(status)
            for name, value in (headers or {"Content-Type": "application/xml"}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # Connections are kept open by who came this way.

    with Server(("127.0.0.1", 0), Handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        gateway = Gateway(replace(behind, endpoint=address, sts_endpoint=f"http://{address}"))
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            serving.join()
