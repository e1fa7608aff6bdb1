"""The service's own credentials, which make buckets and assume the tenants' role.

Synchronous: call it in a thread.
"""

from datetime import timedelta
from pathlib import Path

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import IamAwsProvider, Provider, StaticProvider, WebIdentityProvider
from spawnmesh_core.clock import Clock

from spawnmesh_attachment_blob.clients.renewed_credentials import CREDENTIALS_SECONDS, RenewedCredentials
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_SESSION_NAME = "attachment-blob"


def service_credentials(
    settings: AttachmentBlobSettings, http: urllib3.PoolManager, clock: Clock
) -> Provider:
    """Return the credentials of the kind that the settings name."""
    if settings.s3_credentials == "keys":
        return StaticProvider(
            settings.s3_access_key.get_secret_value(), settings.s3_secret_key.get_secret_value()
        )
    return IdentityCredentials(settings, http, clock)


class IdentityCredentials(RenewedCredentials):
    """Credentials for an identity of this process, in place of keys.

    With `web_identity`, STS gives them for a token in a file, which is read anew each time: its
    owner replaces it before it expires. With `aws`, the variables that AWS sets in a pod say where
    they are; without such variables they are those of the machine.
    """

    # A cloud may hand out credentials that it made hours ago, and the same ones again.
    _shortest_use = timedelta(seconds=10)

    def __init__(self, settings: AttachmentBlobSettings, http: urllib3.PoolManager, clock: Clock) -> None:
        super().__init__(_SESSION_NAME, clock)
        self._settings = settings
        self._http = http

    def _fetch(self) -> Credentials:
        if self._settings.s3_web_identity_token_file is None:
            return IamAwsProvider(http_client=self._http, region=self._settings.s3_region).retrieve()
        token = _token_in(self._settings.s3_web_identity_token_file)
        return WebIdentityProvider(
            jwt_provider_func=lambda: {"access_token": token},
            sts_endpoint=self._settings.sts_endpoint,
            duration_seconds=CREDENTIALS_SECONDS,
            role_arn=self._settings.s3_role_arn or None,
            role_session_name=_SESSION_NAME,
            http_client=self._http,
        ).retrieve()


def _token_in(file: Path) -> str:
    return file.read_text().strip()
