"""Each service sends the events of its audit log to the collector."""

from uuid import uuid4

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.impersonation import use_token

from tests.support.otlp import attributes, log_records, open_collector
from tests.support.serving import client_tokens
from tests.support.session.all_services import READS, open_all_services
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import OpenMesh
from tests.support.waiting import eventually


async def test_denied_call_of_each_service_reaches_the_collector(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn]
) -> None:
    subject = f"mallory-{uuid4().hex}"
    async with (
        open_collector("logs") as (endpoint, received),
        open_all_services(open_peers, open_mesh, migrated, otlp_endpoint=endpoint) as (mesh, peers),
    ):
        token = client_tokens(mesh.keys).client_token(mesh.tenant, subject, 600, role=ClientRole.NONE)
        for service, read in READS.items():
            with use_token(token), pytest.raises(MeshError) as refused:
                await read(peers[service])
            assert refused.value.reason is Reason.ROLE_MISSING

        def denied() -> set[object]:
            found = [(one, attributes(one)) for one in log_records(received)]
            return {
                fields["rpc.method"]
                for one, fields in found
                if fields.get("user.id") == subject and one.event_name == "spawnmesh.audit"
            }

        await eventually(lambda: len(denied()) == len(READS))
        prefixes = {str(method).split(".")[1].replace("_", "-") for method in denied()}
        assert prefixes == set(READS)
