"""Calls of UpdateTenant, and the versions that the services have then."""

from typing import Any

import psycopg
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh_core.errors import MeshError

from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains

_STORED = """
select (select settings_version from attachment_blob.attachment_tenants where tenant_id = %(tenant)s),
       (select settings_version from transcript.tenants where tenant_id = %(tenant)s),
       (select settings_version from hook.tenants where tenant_id = %(tenant)s),
       (select settings_version from model_router.tenant_policies where tenant_id = %(tenant)s)"""


def change(mesh: Mesh, *paths: str, etag: str = "", **fields: Any) -> tenant_pb.UpdateTenantRequest:
    """Asks for `paths` to become what `fields` say."""
    return tenant_pb.UpdateTenantRequest(
        tenant=tenant_pb2.Tenant(tenant_id=mesh.tenant, etag=etag, **fields),
        update_mask=FieldMask(paths=paths),
    )


async def update(mesh: Mesh, *paths: str, etag: str = "", **fields: Any) -> tenant_pb.UpdateTenantResponse:
    request = change(mesh, *paths, etag=etag, **fields)
    answer: tenant_pb.UpdateTenantResponse = await mesh.operator("UpdateTenant", request)
    return answer


async def versions(mesh: Mesh, remains: Remains) -> list[int]:
    """The versions that attachment-blob, transcript, hook and model-router keep."""
    async with await psycopg.AsyncConnection.connect(remains.dsn) as connection:
        row = await (await connection.execute(_STORED, {"tenant": mesh.tenant})).fetchone()
    assert row is not None
    return list(row)


async def refusal(call: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value
