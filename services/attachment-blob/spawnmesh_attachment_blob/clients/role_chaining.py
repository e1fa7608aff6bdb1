"""Try to get further credentials from STS with the credentials of one tenant.

A session policy narrows a tenant's credentials to one bucket. If they could assume the role again
without a policy, they would open every bucket. Synchronous: call it in a thread.
"""

import urllib3
from minio.credentials.credentials import Credentials

from spawnmesh_attachment_blob.clients.assume_role import ask_for_role
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

_SHORTEST_SECONDS = 900


def can_chain(settings: AttachmentBlobSettings, http: urllib3.PoolManager, credentials: Credentials) -> bool:
    """Return whether STS lets the credentials assume the role, without a policy.

    Raises S3_FAILURES if STS cannot be asked, or does not decide.
    """
    status, _ = ask_for_role(settings, http, credentials, session_name="chained", seconds=_SHORTEST_SECONDS)
    if status >= 500:
        raise ValueError(f"STS answered with status {status}")
    return status < 300
