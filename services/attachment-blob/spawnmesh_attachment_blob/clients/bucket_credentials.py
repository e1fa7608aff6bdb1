"""Temporary STS credentials for one bucket.

Synchronous: call it in a thread, if not said otherwise.
"""

import json

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from spawnmesh_core.clock import Clock

from spawnmesh_attachment_blob.clients.assume_role import ask_for_role, credentials_in
from spawnmesh_attachment_blob.clients.renewed_credentials import CREDENTIALS_SECONDS, RenewedCredentials
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_ACTIONS = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:ListBucket",
    "s3:AbortMultipartUpload",
    "s3:ListBucketMultipartUploads",
]


class BucketCredentials(RenewedCredentials):
    """Credentials of the tenants' role, which the service's own assume, for one bucket."""

    def __init__(
        self,
        settings: AttachmentBlobSettings,
        http: urllib3.PoolManager,
        own: Provider,
        bucket: str,
        clock: Clock,
    ) -> None:
        super().__init__(bucket, clock)
        self._settings = settings
        self._http = http
        self._own = own
        self._bucket = bucket

    def _fetch(self) -> Credentials:
        arn = f"arn:aws:s3:::{self._bucket}"
        allow = {"Effect": "Allow", "Action": _ACTIONS, "Resource": [arn, f"{arn}/*"]}
        # The role could be assumed again, without this policy.
        deny = {"Effect": "Deny", "Action": ["sts:*"], "Resource": ["*"]}
        status, body = ask_for_role(
            self._settings,
            self._http,
            self._own.retrieve(),
            session_name=self._bucket,
            seconds=CREDENTIALS_SECONDS,
            policy=json.dumps({"Version": "2012-10-17", "Statement": [allow, deny]}),
        )
        if status != 200:
            raise ValueError(f"STS answered with status {status}")
        return credentials_in(body)
