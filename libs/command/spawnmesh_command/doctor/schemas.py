"""Check the schemas and the workers that the replicas describe."""

from collections.abc import Collection

from spawnmesh.deployment.v1 import deployment_service_pb2 as pb

from spawnmesh_command.doctor.ages import age
from spawnmesh_command.doctor.descriptions import SILENCE, Description
from spawnmesh_command.doctor.finding import Finding

_ADVICE = {
    pb.SCHEMA_STATE_BEHIND: (
        "run the migrations: `helm upgrade` does so before it starts pods,"
        " `migrate` of the service's program anywhere"
    ),
    pb.SCHEMA_STATE_UNFIT: ("upgrade to the release of the schema, or restore the migration that was edited"),
}
_NO_WORKER = (
    "start it, or see its log; without it ended sessions are not cleaned up,"
    " garbage is not collected and observers get no events"
)


def check_schemas(described: Collection[Description]) -> Finding:
    """Report a wrong schema only if a replica says so.

    A schema that cannot be read is not known: the finding of the database says why.
    """
    replicas = [replica for one in described for replica in one.replicas]
    wrong = [replica for replica in replicas if replica.schema.state in _ADVICE]
    if wrong:
        detail = "; ".join(
            dict.fromkeys(f"{replica.service}: {replica.schema.objection}" for replica in wrong)
        )
        return Finding("schemas", False, detail, _ADVICE[wrong[0].schema.state])
    known = [replica for replica in replicas if replica.schema.state != pb.SCHEMA_STATE_UNKNOWN]
    unread = {replica.service: None for replica in replicas if replica not in known}
    silent = {one.service: None for one in described for reason in one.refusals if reason in SILENCE}
    refused = [
        f"{one.service} ({reason})" for one in described for reason in one.refusals if reason not in SILENCE
    ]
    versions = ", ".join(dict.fromkeys(map(_version, known)))
    unknown = [
        f"{said} {', '.join(names)}"
        for said, names in (
            ("not known of", silent),
            ("cannot be read in the databases of", unread),
            ("not reported by", dict.fromkeys(refused)),
        )
        if names
    ]
    if unknown:
        return Finding("schemas", None, "; ".join([versions, *unknown] if versions else unknown))
    return Finding("schemas", True, versions)


def _version(replica: pb.Replica) -> str:
    schema = replica.schema
    version = f"{replica.service} {schema.applied_migration_id}"
    if schema.state == pb.SCHEMA_STATE_AHEAD:
        return f"{version} (release {replica.version} is older and knows {schema.known_migration_id})"
    return version


def check_workers(described: Collection[Description]) -> Finding:
    """Report missing workers of the services that answer. All replicas see the same ones."""
    workers = {
        worker.name: worker for one in described for replica in one.replicas for worker in replica.workers
    }
    missing = [worker for worker in workers.values() if not worker.process_count]
    if missing:
        detail = "; ".join(f"no {worker.name} is at work, {_last_seen(worker)}" for worker in missing)
        return Finding("workers", False, detail, _NO_WORKER)
    if not workers:
        return Finding("workers", None, "not known: no service reports any")
    return Finding(
        "workers", True, ", ".join(f"{worker.process_count} {worker.name}" for worker in workers.values())
    )


def _last_seen(worker: pb.Worker) -> str:
    if not worker.HasField("last_seen_time"):
        return "and none was seen that has not stopped in good order"
    return f"one was seen last {age(worker.last_seen_time)} ago"
