"""Messages for the session, taken over into its transcript."""

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import text_message
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.transcript import append_message


async def drain_inbox(assignment: Assignment) -> None:
    """Appends every waiting message under its own key, then takes it out: a crash between the two delivers it once all the same.

    Asks until nothing waits: an answer holds as many messages as fit, which may be one.
    """
    mesh = assignment.mesh
    while True:
        inbox = await persistently(mesh.session, mesh.runs.ListInbox, pb.ListInboxRequest())
        if not inbox.messages:
            return
        for message in inbox.messages:
            key = message.idempotency_key or message.key  # Of an older session service the latter alone.
            await append_message(assignment, key, text_message(message_pb2.ROLE_USER, message.text))
        taken = pb.AcknowledgeInboxRequest(epoch=assignment.epoch, keys=[message.key for message in inbox.messages])
        await persistently(mesh.session, mesh.runs.AcknowledgeInbox, taken)
