"""The flood of `make bench` has an RPC of each class."""

from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.rpc_class import RpcClass

from tests.bench.flood import RATES
from tests.bench.flooder import ANSWERS, RPCS

METHODS = {
    f"{service.full_name}/{method.name}": method for service in mesh_services() for method in service.methods
}


def test_flood_has_a_call_of_each_class() -> None:
    flooded = {policy_of(METHODS[f"spawnmesh.{name}"]).rpc_class for name in RPCS.values()}
    assert flooded - {None} == set(RpcClass)
    assert RATES.keys() == ANSWERS.keys() >= RPCS.keys()
