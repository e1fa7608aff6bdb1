"""The line of `spawnmesh doctor` about a dependency, and its advice."""

from datetime import timedelta

import pytest
from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh_command.doctor.addresses import Address, addresses_of
from spawnmesh_command.doctor.dependencies import _FAULTS, check_dependencies
from spawnmesh_command.doctor.descriptions import Description
from spawnmesh_core.clock import utc_now
from spawnmesh_core.dependency_watch import DependencyFault


def seen(
    name: str, fault: "pb.DependencyFault.ValueType", *, is_up: bool, host: str = "a", seconds: int = 30
) -> pb.Replica:
    """Return a replica with one dependency."""
    state = pb.DEPENDENCY_STATE_UP if is_up else pb.DEPENDENCY_STATE_DOWN
    dependency = pb.Dependency(name=name, state=state, last_fault=fault)
    dependency.since_time.FromDatetime(utc_now() - timedelta(seconds=seconds))
    return pb.Replica(service="session", host_name=host, dependencies=[dependency])


def test_the_contract_and_the_command_know_every_fault() -> None:
    of_contract = {name.removeprefix("DEPENDENCY_FAULT_") for name, _ in pb.DependencyFault.items()}
    assert of_contract - {"UNSPECIFIED"} == set(DependencyFault)
    assert {pb.DependencyFault.Name(fault).removeprefix("DEPENDENCY_FAULT_") for fault in _FAULTS} == set(
        DependencyFault
    )


@pytest.mark.parametrize(
    ("name", "fault", "advice"),
    [
        ("postgresql", "UNREACHABLE", "check that the database server runs"),
        ("postgresql", "READ_ONLY", "let SESSION_DATABASE_URL lead to the primary"),
        ("s3", "UNREACHABLE", "check that the object store runs, then ATTACHMENT_BLOB_S3_ENDPOINT"),
        ("s3", "CREDENTIALS_REFUSED", "correct ATTACHMENT_BLOB_S3_ACCESS_KEY"),
        ("sts", "FAILED", "correct the keys or the identity, ATTACHMENT_BLOB_STS_ROLE_ARN"),
        ("sts", "NOT_ISOLATED", "let the trust policy of ATTACHMENT_BLOB_STS_ROLE_ARN name"),
        ("credentials/openai", "CREDENTIALS_MISSING", "mount the files, or set the variables"),
        ("hook", "UNREACHABLE", "see hook above"),
        ("model-router", "UNREACHABLE", "correct SESSION_MODEL_ROUTER_TARGET, or let the network through"),
    ],
)
def test_the_advice_is_that_for_the_dependency_and_its_fault(name: str, fault: str, advice: str) -> None:
    replica = seen(name, pb.DependencyFault.Value(f"DEPENDENCY_FAULT_{fault}"), is_up=False)
    (finding,) = check_dependencies([Description("session", (replica,))], broken={"hook"})
    assert (finding.name, finding.ok) == (f"session: {name}", False)
    assert finding.detail.startswith("down for 30 s: ")
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ("a", "for 50 s"),
        ("ab", "on 1 of 2 replicas (b) for 50 s"),
        ("aaa", "on 1 of 3 replicas (number 2) for 50 s"),
    ],
)
def test_the_replicas_are_named_on_which_a_dependency_is_down(hosts: str, told: str) -> None:
    fault = pb.DEPENDENCY_FAULT_TIMEOUT
    down_at = min(1, len(hosts) - 1)
    replicas = tuple(
        seen("s3", fault, is_up=number != down_at, host=host, seconds=40 + 10 * (number == down_at))
        for number, host in enumerate(hosts)
    )
    (finding,) = check_dependencies([Description("session", replicas)], broken=())
    assert finding.detail == f"down {told}: it does not answer in time"


def test_a_dependency_that_was_down_before_is_up_with_a_hint() -> None:
    replicas = [
        seen("s3", pb.DEPENDENCY_FAULT_UNSPECIFIED, is_up=True, seconds=7200),
        seen("s3", pb.DEPENDENCY_FAULT_FAILED, is_up=True, seconds=5),
    ]
    (finding,) = check_dependencies([Description("session", tuple(replicas))], broken=())
    assert finding.detail == "up for 5 s; it was down before: it answers with an error"


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("127.0.0.1:5", [Address("ipv4:127.0.0.1:5", "127.0.0.1")]),
        ("dns:///127.0.0.1:5", [Address("ipv4:127.0.0.1:5", "127.0.0.1")]),
        ("[::1]:5", [Address("ipv6:[::1]:5", "::1")]),
        ("ipv4:127.0.0.1:5,127.0.0.2:6", [Address("ipv4:127.0.0.1:5"), Address("ipv4:127.0.0.2:6")]),
        ("no-such-host.invalid:5", [Address("no-such-host.invalid:5")]),
        ("unix:/tmp/socket", [Address("unix:/tmp/socket")]),
    ],
)
async def test_a_target_is_resolved_to_the_addresses_of_its_replicas(
    target: str, found: list[Address]
) -> None:
    assert await addresses_of(target) == found
