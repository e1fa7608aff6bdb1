"""Try to get further credentials from STS with the credentials of one tenant.

A session policy narrows a tenant's credentials to one bucket. If they could assume the role again
without a policy, they would open every bucket. Synchronous: call it in a thread.
"""

from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

import urllib3
from minio.credentials.credentials import Credentials
from minio.helpers import sha256_hash
from minio.signer import sign_v4_sts
from minio.time import to_amz_date

from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_SHORTEST_SECONDS = 900


def can_chain(settings: AttachmentBlobSettings, http: urllib3.PoolManager, credentials: Credentials) -> bool:
    """Return whether STS lets the credentials assume the role, without a policy.

    Raises S3_FAILURES if STS cannot be asked, or does not decide.
    """
    body = urlencode(
        {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "DurationSeconds": _SHORTEST_SECONDS,
            "RoleArn": settings.sts_role_arn,
            "RoleSessionName": "chained",
        }
    )
    url = urlsplit(settings.sts_endpoint)
    now = datetime.now(UTC)
    token = {"X-Amz-Security-Token": credentials.session_token} if credentials.session_token else {}
    headers = sign_v4_sts(
        method="POST",
        url=url,
        region=settings.s3_region,
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "Host": url.netloc,
            "X-Amz-Date": to_amz_date(now),
            **token,
        },
        credentials=credentials,
        content_sha256=sha256_hash(body),
        date=now,
    )
    signed = {name: str(value) for name, value in headers.items()}
    status = http.request("POST", settings.sts_endpoint, body=body, headers=signed).status
    if status >= 500:
        raise ValueError(f"STS answered with status {status}")
    return status < 300
