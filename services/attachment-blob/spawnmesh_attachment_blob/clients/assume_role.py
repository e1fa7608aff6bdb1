"""AssumeRole of STS, signed with any credentials of S3, temporary ones among them.

`minio.credentials.AssumeRoleProvider` signs with permanent keys only. Synchronous: call it in a
thread.
"""

from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import urllib3
from minio.credentials.credentials import Credentials
from minio.helpers import sha256_hash
from minio.signer import sign_v4_sts
from minio.time import from_iso8601utc, to_amz_date
from minio.xml import find, findtext

from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_DEFAULT_PORTS = {"http": 80, "https": 443}


def ask_for_role(
    settings: AttachmentBlobSettings,
    http: urllib3.PoolManager,
    credentials: Credentials,
    *,
    session_name: str,
    seconds: int,
    policy: str = "",
) -> tuple[int, str]:
    """Ask for credentials of the tenants' role. Return the HTTP status and the body."""
    asked = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "DurationSeconds": str(seconds),
        "RoleArn": settings.sts_role_arn,
        "RoleSessionName": session_name,
    }
    body = urlencode(asked | ({"Policy": policy} if policy else {}))
    url = urlsplit(settings.sts_endpoint)
    now = datetime.now(UTC)
    token = {"X-Amz-Security-Token": credentials.session_token} if credentials.session_token else {}
    headers = sign_v4_sts(
        method="POST",
        url=url,
        region=settings.s3_region,
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "Host": url.netloc.removesuffix(f":{_DEFAULT_PORTS[url.scheme]}"),
            "X-Amz-Date": to_amz_date(now),
            **token,
        },
        credentials=credentials,
        content_sha256=sha256_hash(body),
        date=now,
    )
    signed = {name: str(value) for name, value in headers.items()}
    answer = http.request("POST", settings.sts_endpoint, body=body, headers=signed)
    return answer.status, answer.data.decode(errors="replace")


def credentials_in(body: str) -> Credentials:
    """Return the credentials of an answer to AssumeRole.

    Raises ValueError or ParseError if it has none.
    """
    result = find(ElementTree.fromstring(body), "AssumeRoleResult", strict=True)  # noqa: S314  # from our STS
    held = find(cast(ElementTree.Element, result), "Credentials", strict=True)

    def text(name: str) -> str:
        return str(findtext(cast(ElementTree.Element, held), name, strict=True))

    return Credentials(
        text("AccessKeyId"),
        text("SecretAccessKey"),
        text("SessionToken"),
        from_iso8601utc(text("Expiration")),
    )
