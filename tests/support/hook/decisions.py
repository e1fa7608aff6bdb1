"""The decisions of a delivery log, by their names."""

from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb


def decision_of(delivery: delivery_pb.Delivery) -> str:
    """Return the decision in the log, such as `allow`."""
    return delivery_pb.DeliveryDecision.Name(delivery.decision).removeprefix("DELIVERY_DECISION_").lower()
