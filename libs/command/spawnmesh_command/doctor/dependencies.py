"""Check what each service needs from others, as its replicas see it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spawnmesh.deployment.v1 import deployment_service_pb2 as pb

from spawnmesh_command.doctor.ages import age
from spawnmesh_command.doctor.descriptions import Description
from spawnmesh_command.doctor.finding import Finding

POSTGRESQL = "postgresql"
_CREDENTIALS = "credentials/"
_FAULTS = {
    pb.DEPENDENCY_FAULT_UNREACHABLE: "no connection can be made",
    pb.DEPENDENCY_FAULT_TIMEOUT: "it does not answer in time",
    pb.DEPENDENCY_FAULT_NOT_SERVING: "it answers that it does not serve",
    pb.DEPENDENCY_FAULT_READ_ONLY: "it accepts no writes",
    pb.DEPENDENCY_FAULT_CREDENTIALS_REFUSED: "it refuses the credentials",
    pb.DEPENDENCY_FAULT_CREDENTIALS_MISSING: "none of its credentials can be read",
    pb.DEPENDENCY_FAULT_FAILED: "it answers with an error",
    pb.DEPENDENCY_FAULT_NOT_ISOLATED: "it lets the credentials of one tenant get those of others",
}


@dataclass(frozen=True, slots=True)
class _View:
    """A dependency as the replica on this host sees it."""

    host_name: str
    dependency: pb.Dependency

    @property
    def state(self) -> int:
        return self.dependency.state

    @property
    def since(self) -> int:
        return self.dependency.since_time.ToNanoseconds()


def check_dependencies(described: Collection[Description], broken: Collection[str]) -> list[Finding]:
    """Return a finding for each dependency of each service that answers.

    `broken` are the services that already have a finding of their own.
    """
    findings = []
    for one in described:
        for name in sorted({view.name for replica in one.replicas for view in replica.dependencies}):
            views = [
                _View(replica.host_name, view)
                for replica in one.replicas
                for view in replica.dependencies
                if view.name == name
            ]
            findings.append(_finding(one.service, name, views, broken))
    return findings


def _finding(service: str, name: str, views: Sequence[_View], broken: Collection[str]) -> Finding:
    title = f"{service}: {name}"
    down = [view for view in views if view.state == pb.DEPENDENCY_STATE_DOWN]
    if down:
        first = min(down, key=lambda view: view.since)
        where = f" on {_named(views)}" if len(views) > 1 else ""
        fault = first.dependency.last_fault
        why = _FAULTS.get(fault, "the reason is not known")
        detail = f"down{where} for {age(first.dependency.since_time)}: {why}"
        return Finding(title, False, detail, _advice(service, name, fault, broken))
    if any(view.state != pb.DEPENDENCY_STATE_UP for view in views):
        return Finding(title, None, "not probed yet")
    newest = max(views, key=lambda view: view.since).dependency
    before = _FAULTS.get(newest.last_fault)
    detail = f"up for {age(newest.since_time)}" + (f"; it was down before: {before}" if before else "")
    return Finding(title, True, detail)


def _named(views: Sequence[_View]) -> str:
    """Name the replicas on which it is down by their hosts, or by numbers if these share a host."""
    down = {number: view for number, view in enumerate(views, 1) if view.state == pb.DEPENDENCY_STATE_DOWN}
    if len(down) == len(views):
        return f"all {len(views)} replicas"
    has_own_hosts = len({view.host_name for view in views}) == len(views)
    names = ", ".join(
        view.host_name if has_own_hosts else f"number {number}" for number, view in down.items()
    )
    return f"{len(down)} of {len(views)} replicas ({names})"


def _advice(service: str, name: str, fault: int, broken: Collection[str]) -> str:
    prefix = service.replace("-", "_").upper()
    if name == POSTGRESQL:
        if fault == pb.DEPENDENCY_FAULT_READ_ONLY:
            return f"let {prefix}_DATABASE_URL lead to the primary, or end its read-only mode"
        return (
            "check that the database server runs and takes connections,"
            " then the URL and the password of the service, and the network"
        )
    if name in ("s3", "sts"):
        return _storage_advice(name, fault)
    if name.startswith(_CREDENTIALS):
        return "mount the files, or set the variables, that its configuration refers to"
    if name in broken:
        return f"see {name} above"
    return f"correct {prefix}_{name.replace('-', '_').upper()}_TARGET, or let the network through"


def _storage_advice(name: str, fault: int) -> str:
    if fault == pb.DEPENDENCY_FAULT_CREDENTIALS_REFUSED:
        return (
            "correct ATTACHMENT_BLOB_S3_ACCESS_KEY and …_S3_SECRET_KEY, or …_S3_ROLE_ARN without keys,"
            " and their right to use buckets"
        )
    if fault == pb.DEPENDENCY_FAULT_NOT_ISOLATED:
        return "let the trust policy of ATTACHMENT_BLOB_STS_ROLE_ARN name the identity of the service alone"
    if name == "sts" and fault == pb.DEPENDENCY_FAULT_FAILED:
        return "correct the keys or the identity, ATTACHMENT_BLOB_STS_ROLE_ARN and the trust of the role"
    endpoint = "S3_ENDPOINT" if name == "s3" else "STS_ENDPOINT"
    return f"check that the object store runs, then ATTACHMENT_BLOB_{endpoint} and the network"
