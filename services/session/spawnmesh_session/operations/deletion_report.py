"""The report of a tenant's deletion, as clients see it."""

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import tenant_pb2

from spawnmesh_session.domain.tenants import TenantDeletion


def render_deletion(deletion: TenantDeletion) -> tenant_pb2.TenantDeletion:
    """Render the progress of a deletion, or its report if it is done."""
    return tenant_pb2.TenantDeletion(
        request_time=_time(deletion.request_time),
        end_time=_time(deletion.end_time),
        killed_run_count=deletion.killed_run_count,
        deleted_session_count=deletion.deleted_session_count,
        deleted_transcript_count=deletion.deleted_transcript_count,
        deleted_object_count=deletion.deleted_object_count,
        stalled_by=deletion.stalled_by,
    )


def _time(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    rendered = Timestamp()
    rendered.FromDatetime(time)
    return rendered
