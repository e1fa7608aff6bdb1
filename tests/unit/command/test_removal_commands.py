"""Commands that archive and delete sessions, and delete tenants."""

import json

from spawnmesh.session.v1 import session_pb2

from tests.support.command.fake_mesh import SESSION_ID, mesh, unset

__all__ = ["mesh", "unset"]

OPERATION = f"services/session/tenants/acme/operations/opr_{'0' * 26}"


async def test_archive_and_delete_report_how_many(mesh):
    archived = await mesh.run("sessions", "archive", SESSION_ID)
    deleted = await mesh.run("sessions", "delete", SESSION_ID)
    for_programs = await mesh.run("sessions", "delete", SESSION_ID, "--json")

    assert archived.stdout == "sessions archived: 3\n"
    assert deleted.stdout == "sessions deleted: 2; runs killed: 1\n"
    assert json.loads(for_programs.stdout) == {"deleted_session_count": 2, "killed_run_count": 1}
    assert [request.session_id for request in mesh.sessions.requests] == [SESSION_ID] * 3


async def test_archived_sessions_are_listed_when_asked_for(mesh):
    await mesh.run("sessions", "--json")
    await mesh.run("sessions", "--archived", "--json")

    assert [request.include_archived for request in mesh.sessions.requests] == [False, True]


async def test_tenant_is_deleted_only_after_a_yes(mesh):
    refused = await mesh.run("tenant", "delete", "acme")
    begun = await mesh.run("tenant", "delete", "acme", "--yes")

    assert refused.exit_code == 1
    assert begun.exit_code == 0
    assert begun.stdout.split()[:4] == ["tenant", "acme", "state", "DELETED"]


async def test_tenant_deletion_is_waited_for_unless_it_is_not_wanted(mesh):
    mesh.tenants.deletion_looks = 4
    begun = await mesh.run("tenant", "delete", "acme", "--yes", "--no-wait", "--json")
    shown = await mesh.run("tenant", "show", "acme")
    done = await mesh.run("tenant", "delete", "acme", "--yes", "--json")

    started = json.loads(begun.stdout)
    assert (started["name"], started["done"]) == (OPERATION, False)
    assert started["response"]["tenant"]["state"] == "TENANT_STATE_DELETING"
    assert "attachment-blob: DEPENDENCY_UNAVAILABLE" in shown.stdout
    assert "7 sessions" in shown.stdout
    assert json.loads(done.stdout)["state"] == "TENANT_STATE_DELETED"


async def test_tenant_deletion_that_takes_too_long_says_how_to_go_on(mesh):
    mesh.tenants.deletion_looks = 100
    late = await mesh.run("tenant", "delete", "acme", "--yes", "--timeout", "0")

    assert late.exit_code == 1
    assert f"{OPERATION} is not done; it goes on" in late.stderr


async def test_tenant_status_has_a_line_for_each_service_also_for_one_that_does_not_answer(mesh):
    shown = await mesh.run("tenant", "status", "acme")
    for_programs = await mesh.run("tenant", "status", "acme", "--json")

    header, session, hook = (line.split() for line in shown.stdout.splitlines())
    assert header == ["service", "state", "settings", "purge", "stored"]
    assert (session[:3], session[-2:]) == (["session", "PURGING", "v3"], ["500+", "runs"])
    assert " ".join(session[-5:-2]).endswith("done not yet")
    assert (hook[0], hook[-1]) == ("hook", "DEPENDENCY_UNAVAILABLE")
    services = json.loads(for_programs.stdout)["services"]
    assert services[0]["status"]["state"] == "PARTICIPATION_STATE_PURGING"
    assert services[1]["error_reason"] == "REASON_DEPENDENCY_UNAVAILABLE"


async def test_tenant_that_never_was(mesh):
    shown = await mesh.run("tenant", "show", "nobody")

    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: NOT_FOUND")


async def test_receipt_shows_the_hint_or_that_it_was_ignored(mesh):
    receipt = session_pb2.AttachmentReceipt(set_id="att_x", count=1, mount_path="/mnt/in")
    mesh.sessions.outcome.receipt.CopyFrom(receipt)
    hinted = await mesh.run("wait", SESSION_ID)
    mesh.sessions.outcome.receipt.mount_path = ""
    mesh.sessions.outcome.receipt.warnings.append(session_pb2.RECEIPT_WARNING_MOUNT_PATH_IGNORED)
    ignored = await mesh.run("wait", SESSION_ID)

    assert "/mnt/in" in hinted.stdout
    assert "mount path was ignored" in ignored.stdout
