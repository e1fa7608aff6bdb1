"""Clients that talk with a session that stays open."""

from uuid import uuid4

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb

from tests.chaos.random_faults.load.calls import Client


async def converse_steadily(client: Client) -> None:
    """Open a session, send some messages, some of them while a run goes on, and close it.

    Some runs are interrupted.
    """
    while not client.stop.is_set():
        request = client.spawn_request("Hello.", mode=session_pb2.SESSION_MODE_SESSION, label="conversation")
        session_id = await client.spawn(request)
        if not session_id:
            await client.pause(0.2, 1.0)
            continue
        for number in range(client.random.randrange(1, 5)):
            if client.random.random() < 0.7:
                await client.wait(session_id)
            request_id = str(uuid4())
            fields = {"request_id": request_id, "text": f"Message {number} of {request_id}."}
            if client.random.random() < 0.3:  # An urgent one, which stops the turn of a live run.
                urgent = pb.InterruptRunRequest(session_id=session_id, **fields)
                await client.insist(
                    "send", client.sessions.InterruptRun, urgent, session_id=session_id, **fields
                )
            else:
                message = pb.SendMessageRequest(session_id=session_id, **fields)
                await client.insist(
                    "send", client.sessions.SendMessage, message, session_id=session_id, **fields
                )
            if client.random.random() < 0.3:
                await client.interrupt(session_id)
        if await client.wait(session_id) is not None:
            await client.kill(session_id)  # Its last run has ended: this closes the session.
