"""The gRPC services that callers outside of the mesh may call, for the GRPCRoute of the chart.

`python -m tests.support.deploy.grpc_services` writes the file that the chart reads.
"""

import yaml
from spawnmesh_calls.service_header import SERVICE_HEADER
from spawnmesh_gateway.rpcs import gateway_rpcs
from spawnmesh_gateway.settings import SERVICES

from tests.support.deploy.rendering import ROOT

FILE = ROOT / "deploy" / "helm" / "spawnmesh" / "files" / "grpc-services.yaml"
_HEAD = """\
# Written from the contracts by `python -m tests.support.deploy.grpc_services`. Calls of a shared
# contract name the service in the header.
"""


def content() -> str:
    """Return the file: the contracts of each service, those that all services have, and the header
    by which a call of these names the service.
    """
    own: dict[str, list[str]] = {service: [] for service in SERVICES}
    shared: list[str] = []
    for rpc in gateway_rpcs():
        names = shared if rpc.is_shared else own[rpc.services[0]]
        if (name := rpc.method.containing_service.full_name) not in names:
            names.append(name)
    return _HEAD + yaml.safe_dump({"header": SERVICE_HEADER, "own": own, "shared": shared})


if __name__ == "__main__":
    FILE.write_text(content())
