"""The decisions of the delivery log are those of the contract."""

from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh_hook.domain.deliveries import DeliveryDecision
from spawnmesh_hook.rpc.messages import parse_delivery_decision


def test_contract_has_every_decision_and_no_other() -> None:
    named = {parse_delivery_decision(value) for value in delivery_pb.DeliveryDecision.values()}
    assert named == {None, *DeliveryDecision}
