"""Failures of models that are reported, and those that are left out."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh_runner.loop.model_failures import ModelFailures


def test_failures_that_the_contract_would_refuse_are_mended_or_left_out() -> None:
    failures = ModelFailures()
    failures.add("", generation_pb2.FAILOVER_REASON_TIMEOUT)
    failures.add("m" * 257, generation_pb2.FAILOVER_REASON_TIMEOUT)
    newer: generation_pb2.FailoverReason.ValueType = 9999  # type: ignore[assignment]
    failures.add("p/one", newer)
    failures.add("p/two", generation_pb2.FAILOVER_REASON_TIMEOUT, 70000)
    assert [(one.model, one.reason, one.http_status) for one in failures._failures] == [
        ("p/one", "UNKNOWN", 0), ("p/two", "TIMEOUT", 0),
    ]  # fmt: skip
