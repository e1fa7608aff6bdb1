"""Move messages for the session from its inbox into its transcript."""

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_client.turn_messages import text_message

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.transcript_appends import append_message


async def drain_inbox(assignment: Assignment) -> None:
    """Append every waiting message under its own key, then acknowledge it.

    A crash between the two does not deliver a message twice. The loop lists the inbox until it is
    empty: one response holds as many messages as fit, which may be one.
    """
    peers = assignment.peers
    while True:
        report_count = assignment.interruption.report_count
        inbox = await call_with_retry(peers.session, peers.runs.ListInbox, pb.ListInboxRequest())
        if not inbox.messages:
            assignment.interruption.inbox_was_read(report_count)
            return
        for message in inbox.messages:
            await append_message(
                assignment, message.append_request_id, text_message(message_pb2.ROLE_USER, message.text)
            )
        acknowledgement = pb.AcknowledgeInboxRequest(
            epoch=assignment.epoch, keys=[message.key for message in inbox.messages]
        )
        await call_with_retry(peers.session, peers.runs.AcknowledgeInbox, acknowledgement)
