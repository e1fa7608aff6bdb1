"""The paths of JSON over HTTP, as the contracts name them by `google.api.http`."""

import re
from dataclasses import dataclass

from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor import FieldDescriptor

from spawnmesh_gateway.rpcs import GatewayRpc

_VARIABLE = re.compile(r"\{([a-z_.]+)\}")
_RESOURCE = re.compile(r"\{([a-z_.]+)=([^}]*)\}")
_COLLECTION = re.compile(r"(?<=/)([a-z]+)s/\*")
_VERBS = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True, slots=True)
class HttpRule:
    """The verb, the path and the field of the body of an RPC: `*` is the whole request, and an
    empty one no body. A `*` within the path is a service.

    `resource` is the field whose value is a part of the path with slashes, such as the `name` of
    `/v1/services/*/operations/{operation_id}`; empty if there is none. The variables of such a path
    are no fields. `number` counts the paths of the RPC, from 1 on.
    """

    rpc: GatewayRpc
    verb: str
    path: str
    body: str
    resource: str = ""
    number: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The fields of the request that are in the path, such as `agent.agent_id`."""
        return (self.resource,) if self.resource else self.segments

    @property
    def segments(self) -> tuple[str, ...]:
        """The variables of the path."""
        return tuple(_VARIABLE.findall(self.path))

    def field(self, variable: str) -> FieldDescriptor:
        """Return the field of the request. Raises KeyError."""
        *parents, last = variable.split(".")
        message = self.rpc.method.input_type
        for name in parents:
            inner = message.fields_by_name[name].message_type
            if inner is None:
                raise KeyError(variable)
            message = inner
        return message.fields_by_name[last]


def http_rules(rpc: GatewayRpc) -> list[HttpRule]:
    """Return the rules of an RPC, the main one first; none if it has no path."""
    options = rpc.method.GetOptions()
    if not options.HasExtension(annotations_pb2.http):
        return []
    main = options.Extensions[annotations_pb2.http]
    declared = [main, *main.additional_bindings]
    rules = (_rule(rpc, one, number) for number, one in enumerate(declared, start=1))
    return [rule for rule in rules if rule is not None]


def _rule(rpc: GatewayRpc, declared: http_pb2.HttpRule, number: int) -> HttpRule | None:
    verb = declared.WhichOneof("pattern")
    if verb not in _VERBS:
        return None
    path = getattr(declared, verb)
    resource = _RESOURCE.search(path)
    if resource is None:
        return HttpRule(rpc, verb, path, declared.body, number=number)
    # Each `*` is the id of a resource, except the one of the service.
    shape = _COLLECTION.sub(r"\1s/{\1_id}", resource[2])
    return HttpRule(rpc, verb, path.replace(resource[0], shape), declared.body, resource[1], number)
