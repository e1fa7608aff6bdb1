"""Calls plugins that are webhooks, with one signed HTTPS request for each call."""

import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus

from google.protobuf import json_format

from spawnmesh_hook.clients.handler_answer import Answer, AnswerBytes
from spawnmesh_hook.clients.handler_request import HandlerRequest, Request
from spawnmesh_hook.clients.https_post import AnswerTooLarge, NoAnswer, PostedBody, post
from spawnmesh_hook.clients.webhook_secrets import WebhookSecrets
from spawnmesh_hook.domain import call_failures
from spawnmesh_hook.domain.call_failures import MAX_ANSWER_BYTES, CallFailure
from spawnmesh_hook.domain.endpoints import Address, parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin


@dataclass(frozen=True, slots=True)
class WebhookPluginClient:
    """Opens a connection for each call, to an address that was checked for it."""

    tls: ssl.SSLContext
    secrets: WebhookSecrets

    async def call(
        self,
        tenant_id: str,
        plugin: Plugin,
        addresses: tuple[Address, ...],
        delivery_id: str,
        handler_request: HandlerRequest[Request, Answer],
    ) -> AnswerBytes | CallFailure:
        """Return the plugin's answer from one of the addresses, which were checked before."""
        secrets = (self.secrets.of_plugin(tenant_id, plugin),)
        posted = PostedBody(delivery_id, secrets, _body(handler_request), is_traced=True)
        try:
            answer = await post(
                parse_endpoint(plugin.endpoint),
                addresses,
                self.tls,
                posted,
                max_answer_bytes=MAX_ANSWER_BYTES,
                read_status=HTTPStatus.OK,
            )
        except AnswerTooLarge:
            return call_failures.ANSWER_TOO_LARGE
        except NoAnswer:
            return call_failures.NO_CONNECTION
        if answer.status != HTTPStatus.OK:
            return call_failures.wrong_status(answer.status)
        return AnswerBytes(answer.body, is_json=True)


def _body(handler_request: HandlerRequest[Request, Answer]) -> bytes:
    event = json_format.MessageToDict(handler_request.request, preserving_proto_field_name=True)
    return json.dumps({"hook": handler_request.hook.value, **event}, separators=(",", ":")).encode()
