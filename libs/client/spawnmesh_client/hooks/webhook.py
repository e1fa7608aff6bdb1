"""A plugin behind a web framework: checks and answers the mesh's HTTPS calls."""

import json
from collections.abc import Mapping

from google.protobuf import json_format
from google.protobuf.message import Message
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.webhook_signature import REPLAY_WINDOW_SECONDS, SignatureRefused, verify

from spawnmesh_client.hooks.handlers import ASKED, Handlers


class Webhook:
    """Answers calls for these handlers. What it has answered in the last five minutes is remembered in this process alone: behind several, share
    the ids among them.
    """

    def __init__(self, handlers: Handlers, secret: str) -> None:
        self._handlers = handlers
        self._secret = secret
        self._answered: dict[str, float] = {}

    async def answer(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """The JSON to answer with status 200. Raises SignatureRefused, to be answered with 401, for a call that is forged, old or repeated;
        ValueError, to be answered with 400, for one that is none of the contract; and what the handler raises.
        """
        now = utc_now().timestamp()
        delivery_id = verify(self._secret, headers, body, now)
        self._answered = {key: at for key, at in self._answered.items() if at > now - 2 * REPLAY_WINDOW_SECONDS}
        if delivery_id in self._answered:
            raise SignatureRefused("the call was answered before")
        self._answered[delivery_id] = now
        called = json.loads(body)
        if not isinstance(called, dict):
            raise ValueError("the call is no JSON object")
        response = await self._respond(str(called.get("hook", "")).lower(), called.get("event", {}))
        return json_format.MessageToJson(response, preserving_proto_field_name=True, indent=None).encode()

    async def _respond(self, name: str, event: object) -> Message:
        asked = ASKED.get(name)
        request: Message = pb.HandleObservedEventRequest() if asked is None else asked.request()
        try:
            json_format.ParseDict({"event": event}, request, ignore_unknown_fields=True)
        except json_format.ParseError:
            raise ValueError("the call is not one of the contract") from None
        if asked is not None:
            return await self._handlers.ask(name, getattr(request, "event"))  # noqa: B009 - its type differs by hook
        await self._handlers.tell(getattr(request, "event"))  # noqa: B009 - as above
        return pb.HandleObservedEventResponse()
