"""PlanRetry: what a caller has to do before it asks another provider."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import World


async def test_PlanRetry__merges_what_was_done_and_withholds_images(world: World) -> None:
    router = await world.router()
    done = [
        generation_pb2.PartialExecution(tool_names=["pay", "a b"]),
        generation_pb2.PartialExecution(),
        generation_pb2.PartialExecution(tool_names=["pay", "read"], sent_to_person=True),
    ]
    plan = await router.call(
        "PlanRetry",
        pb.PlanRetryRequest(
            is_retry=True,
            provider="a",
            first_provider="a",
            previous_reason=generation_pb2.FAILOVER_REASON_FORMAT,
            image_count=2,
            partial_executions=done,
            idempotent_tool_names=["read"],
        ),
    )
    assert (plan.image_count, plan.prompt_image_detection_suppressed) == (0, True)
    assert list(plan.partial_execution.tool_names) == ["pay", "ab", "read"]
    assert "unknown: pay, ab." in plan.notice
