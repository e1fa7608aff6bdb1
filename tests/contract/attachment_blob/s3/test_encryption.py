"""Encryption headers, recorded by a fake server, because the S3 of the tests has no keys."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError
from spawnmesh_attachment_blob.clients.multiparts import Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import http_pool, open_s3_calls
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_CREDENTIALS = (
    b'<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
    b"<AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>"
    b"<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
_BEGUN = (
    b'<InitiateMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Bucket>b</Bucket>'
    b"<Key>k</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
)
_KEY = "x-amz-server-side-encryption-aws-kms-key-id"


@pytest.fixture
def s3_that_listens() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The server's address, and the headers of each put and each begun multipart upload."""
    seen: list[dict[str, str]] = []

    class Listener(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(_BEGUN if "uploads" in self.path else _CREDENTIALS)

        def _answer(self, body: bytes) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if body is not _CREDENTIALS:
                seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()
        serving.join()


def settings(address: str, **more: str) -> AttachmentBlobSettings:
    return AttachmentBlobSettings.model_validate(
        {
            "database_url": "postgresql://unused",
            "s3_endpoint": address,
            "s3_access_key": "a",
            "s3_secret_key": "b",
            "sts_endpoint": f"http://{address}",
            "sts_role_arn": "arn",
            **more,
        }
    )


@pytest.mark.parametrize(
    ("more", "algorithm", "key"),
    [
        ({}, None, None),
        ({"s3_encryption": "s3"}, "AES256", None),
        ({"s3_encryption": "kms", "s3_kms_key_id": "alias/mesh-{tenant_id}"}, "aws:kms", "alias/mesh-t1"),
    ],
    ids=["none", "s3", "kms"],
)
async def test_each_object_is_put_with_the_encryption_of_the_settings(
    s3_that_listens: tuple[str, list[dict[str, str]]],
    more: dict[str, str],
    algorithm: str | None,
    key: str | None,
) -> None:
    address, seen = s3_that_listens
    chosen = settings(address, **more)
    with http_pool(chosen) as http:
        async with open_s3_calls(chosen) as calls:
            buckets = TenantBuckets(chosen, http)
            await ObjectStore(buckets, calls).put_all("t1", {"0" * 64: b"x"})
            await ObjectStore(buckets, calls).put("t1", "k", "0" * 64, b"x")
            assert await Multiparts(buckets, calls).begin("t1", "k") == "u1"

    found = [(headers.get("x-amz-server-side-encryption"), headers.get(_KEY)) for headers in seen]
    assert found == [(algorithm, key)] * 3


@pytest.mark.parametrize("key", ["", "{other}", "{", "{0}"])
def test_kms_needs_a_key_with_no_other_placeholder_than_the_tenant(key: str) -> None:
    with pytest.raises(ValidationError, match="s3_kms_key_id"):
        settings("127.0.0.1:1", s3_encryption="kms", s3_kms_key_id=key)
