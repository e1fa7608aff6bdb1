"""A plugin behind a web framework: verify and answer the mesh's HTTPS calls."""

import json
from collections.abc import Mapping

from google.protobuf import json_format
from google.protobuf.message import Message
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.webhook_signature import (
    SIGNATURE_AGE_SECONDS,
    HeaderValue,
    SignatureRefused,
    bytes_of,
    verify_signature,
)

from spawnmesh_plugin.handlers import REQUEST_HOOKS, Handlers

__all__ = ["SignatureRefused", "WebhookPlugin"]


class WebhookPlugin:
    """Answer calls for these handlers.

    The calls of the last five minutes are remembered in this process only: several processes must
    share their ids.
    """

    def __init__(self, handlers: Handlers, secret: str) -> None:
        self._handlers = handlers
        self._secret = secret
        self._answered: dict[str, float] = {}

    async def answer(self, headers: Mapping[str, HeaderValue], body: bytes | bytearray | memoryview) -> bytes:
        """Return the JSON body for status 200.

        The call is signed as Standard Webhooks says, with the secret that `register` returned.
        Raises SignatureRefused (answer 401) for a forged, old or repeated call; ValueError (answer
        400) for a call outside of the contract; and what the handler raises.
        """
        now = utc_now().timestamp()
        delivery_id = verify_signature(self._secret, headers, body)
        self._answered = {
            key: at for key, at in self._answered.items() if at > now - 2 * SIGNATURE_AGE_SECONDS
        }
        if delivery_id in self._answered:
            raise SignatureRefused("the call was answered before")
        self._answered[delivery_id] = now
        called = json.loads(bytes_of(body))
        if not isinstance(called, dict):
            raise ValueError("the call is no JSON object")
        response = await self._respond(str(called.get("hook", "")).lower(), called.get("event", {}))
        return json_format.MessageToJson(response, preserving_proto_field_name=True, indent=None).encode()

    async def _respond(self, name: str, event: object) -> Message:
        request_hook = REQUEST_HOOKS.get(name)
        request: Message = pb.HandleObservedEventRequest() if request_hook is None else request_hook.request()
        try:
            json_format.ParseDict({"event": event}, request, ignore_unknown_fields=True)
        except json_format.ParseError:
            raise ValueError("the call is not one of the contract") from None
        if request_hook is not None:
            return await self._handlers.handle(name, getattr(request, "event"))  # noqa: B009
        await self._handlers.observe(getattr(request, "event"))  # noqa: B009
        return pb.HandleObservedEventResponse()
