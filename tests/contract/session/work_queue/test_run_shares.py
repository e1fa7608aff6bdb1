"""Runners' places are shared by weight, and some are kept for tenants that have none."""

from collections import Counter
from collections.abc import Sequence

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import runner_tokens
from tests.support.session.harness import Mesh
from tests.support.session.run_shares import Share, claimed


async def tenant(mesh: Mesh, *, weight: int = 0, cap: int = 0) -> Mesh:
    """Create a tenant of the same mesh."""
    another = Mesh(mesh.peer, mesh.keys, mesh.settings)
    settings = TenantSettings(run_weight=weight, max_running_run_count=cap, max_live_child_count=100)
    await another.create_tenant(settings=settings)
    return another


async def claim(tenants: Sequence[Mesh], limit: int, *, reserved: int = 0) -> Counter[str]:
    """Claim runs of these tenants once, and return how many each got."""
    one = tenants[0]
    request = run_pb.ClaimRunsRequest(runner_id="r", max_run_count=limit, reserved_run_count=reserved)
    token = runner_tokens(one.keys).runner_token("r", 600, tenants=[each.tenant for each in tenants])
    with use_token(token):
        answer = await one.peer.unary(one.runs.ClaimRuns, request, timeout_seconds=60.0)
    return Counter(held.tenant_id for held in answer.runs)


async def test_ClaimRuns__a_newcomer_gets_the_place_that_a_busy_tenant_left(mesh: Mesh) -> None:
    busy, newcomer = await tenant(mesh), await tenant(mesh)
    for _ in range(6):
        await busy.spawn()
    both = (busy, newcomer)
    assert await claim(both, 4, reserved=1) == {busy.tenant: 3}
    assert await claim(both, 1, reserved=1) == {}, "the place stays free"
    for _ in range(2):
        await newcomer.spawn()
    assert await claim(both, 1, reserved=1) == {newcomer.tenant: 1}
    assert await claim(both, 1, reserved=1) == {}, "neither tenant is new"
    assert await claim(both, 2, reserved=1) == {newcomer.tenant: 1}, "it has fewer running runs"


async def test_ClaimRuns__places_are_shared_by_weight(mesh: Mesh) -> None:
    tenants = [await tenant(mesh, weight=3), await tenant(mesh), await tenant(mesh, weight=2, cap=2)]
    shares = dict(zip((3, 1, 2), tenants, strict=True))
    for one in tenants:
        for _ in range(7):
            await one.spawn()
    running: Counter[str] = Counter()
    for limit, reserved in ((2, 0), (3, 1), (1, 1), (5, 0), (4, 2)):
        model = {
            one.tenant: Share(
                7 - running[one.tenant], running[one.tenant], weight, cap=2 if weight == 2 else 32
            )
            for weight, one in shares.items()
        }
        got = await claim(tenants, limit, reserved=reserved)
        assert got == claimed(model, limit, reserved)
        running += got
    assert running == {shares[3].tenant: 7, shares[1].tenant: 3, shares[2].tenant: 2}
