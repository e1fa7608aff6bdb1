"""Names that tenants choose make a bounded number of series."""

from spawnmesh_model_router.domain.answer import Usage
from spawnmesh_model_router.domain.bounded_names import OTHER, BoundedNames
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.domain.request_size import RequestSize
from spawnmesh_model_router.domain.routing_request import EarlierAttempts, RoutingRequest
from spawnmesh_model_router.metrics import MAX_AGENTS, MAX_AGENTS_OF_TENANT, MAX_CLASSES, RouterMetrics

from tests.support.measured import Measured

MODEL = ModelRef("provider", "model")
CHARGED = ChargedUsage(Usage(input=3, output=4), cost_micros=5)


def routing(tenant: str, agent: str, tenant_class: str = "") -> RoutingRequest:
    return RoutingRequest(
        tenant_id=tenant,
        model="",
        fallback_models=(),
        only_named=False,
        strict=False,
        session_id="",
        deadline=0,
        earlier=EarlierAttempts(),
        blind_model_policy=BlindModelPolicy.STRIP,
        policy=TenantPolicy(tenant_class=tenant_class),
        image_count=0,
        image_boundary=None,
        size=RequestSize(0, 0, 0),
        has_tools=False,
        idempotent_tools=frozenset(),
        last_answer_provider="",
        agent_id=agent,
    )


def test_tenant_that_makes_ten_thousand_agents_makes_few_series_and_takes_none_from_others() -> None:
    measured = Measured()
    metrics = RouterMetrics(measured.metrics.meter)
    for number in range(10_000):
        metrics.charged(routing("hostile", f"agent-{number}"), MODEL, CHARGED)
    metrics.charged(routing("calm", "reviewer"), MODEL, CHARGED)
    for name, each in (("tokens", 7), ("cost", 5)):
        counts = {
            attributes["gen_ai.agent.name"]: value
            for attributes, value in measured.points(f"spawnmesh.model_router.agent.{name}")
        }
        assert counts.pop("reviewer") == each
        assert counts.pop(OTHER) == (10_000 - MAX_AGENTS_OF_TENANT) * each
        assert len(counts) == MAX_AGENTS_OF_TENANT
    assert "hostile" not in str(measured.points("spawnmesh.model_router.tokens"))


def test_many_tenants_together_make_no_more_series_than_the_process_may_have() -> None:
    measured = Measured()
    metrics = RouterMetrics(measured.metrics.meter)
    for number in range(1_000):
        tenant = routing(f"tenant-{number}", f"agent-{number}", tenant_class=f"class-{number}")
        metrics.charged(tenant, MODEL, CHARGED)
    assert len(measured.points("spawnmesh.model_router.agent.cost")) == MAX_AGENTS + 1
    assert len(measured.points("spawnmesh.model_router.cost")) == MAX_CLASSES + 1


def test_name_that_is_known_stays_itself() -> None:
    names = BoundedNames(2, 1)
    found = [names.bound(*one) for one in (("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"), ("c", "z"))]
    assert found == ["a", OTHER, "a", "b", OTHER]
    assert names.bound("b", "x") == "b"
