"""ClassifyError: the reason that Generate would give a failure."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from tests.support.model_router.fixtures import World


async def test_ClassifyError__judges_as_generate_does(world: World) -> None:
    router = await world.router()
    request = pb.ClassifyErrorRequest(http_status=429, message='{"error":{"code":"insufficient_quota"}}')
    judged = await router.call("ClassifyError", request)
    assert judged.reason == generation_pb2.FAILOVER_REASON_BILLING
    assert (judged.is_transient, judged.stops_chain) == (False, False)
    limited = await router.call(
        "ClassifyError", pb.ClassifyErrorRequest(http_status=429, message="slow down")
    )
    assert (limited.reason, limited.is_transient) == (generation_pb2.FAILOVER_REASON_RATE_LIMIT, True)
    image = await router.call(
        "ClassifyError", pb.ClassifyErrorRequest(http_status=400, message="image too large")
    )
    assert (image.reason, image.stops_chain) == (generation_pb2.FAILOVER_REASON_NO_FAILOVER, True)
