"""The document: an operation for each RPC that has a path."""

import importlib.metadata
import re
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from spawnmesh_gateway.http_rules import HttpRule, http_rules
from spawnmesh_gateway.openapi.comments import Comments
from spawnmesh_gateway.openapi.errors import error_responses, error_schemas, responses_of_operation
from spawnmesh_gateway.openapi.schemas import WELL_KNOWN, Schemas
from spawnmesh_gateway.rpcs import client_rpcs
from spawnmesh_gateway.typed import Json

_SERVICE = "services/*/"


def openapi(comments: Comments) -> Json:
    """Return the OpenAPI 3.1 document of all RPCs for clients and operators."""
    schemas = Schemas(comments)
    paths: dict[str, Json] = {}
    for rpc in client_rpcs():
        for rule in http_rules(rpc):
            path = rule.path.replace(_SERVICE, "services/{service}/")
            paths.setdefault(path, {})[rule.verb] = _operation(rule, schemas, comments)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Spawnmesh",
            "version": importlib.metadata.version("spawnmesh-gateway"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The RPCs of the mesh as JSON over HTTP, through its gateway.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "responses": error_responses(),
            "schemas": {**dict(sorted(schemas.described.items())), **error_schemas()},
        },
    }


def _operation(rule: HttpRule, schemas: Schemas, comments: Comments) -> Json:
    method = rule.rpc.method
    comment = comments.get(method.full_name, method.name)
    parameters = [*_path_parameters(rule, schemas), *_query_parameters(rule, schemas)]
    further = f"_{rule.number}" if rule.number > 1 else ""
    operation: Json = {
        "operationId": f"{method.containing_service.name}_{method.name}{further}",
        "tags": [method.containing_service.full_name.removeprefix("spawnmesh.")],
        "summary": re.split(r"(?<=\.)\s", comment, maxsplit=1)[0].replace("\n", " "),
        "description": comment,
        "responses": {"200": _success(rule, schemas), **responses_of_operation()},
    }
    if parameters:
        operation["parameters"] = parameters
    if rule.body:
        schema = _body(rule, schemas)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _success(rule: HttpRule, schemas: Schemas) -> Json:
    schema = schemas.message(rule.rpc.method.output_type)
    if rule.rpc.method.server_streaming:
        text = "Server-sent events. The data of each one is this message."
        return {"description": text, "content": {"text/event-stream": {"schema": schema}}}
    return {"description": "The response.", "content": {"application/json": {"schema": schema}}}


def _body(rule: HttpRule, schemas: Schemas) -> Json:
    request = rule.rpc.method.input_type
    if rule.rpc.method.client_streaming:
        return {"type": "array", "items": schemas.message(request)}
    if rule.body == "*":
        return schemas.properties(request, without=rule.variables)
    return schemas.field(request.fields_by_name[rule.body])


def _path_parameters(rule: HttpRule, schemas: Schemas) -> Iterator[Json]:
    if _SERVICE in rule.path:
        services: Json = {"type": "string", "enum": list(rule.rpc.services)}
        yield {"name": "service", "in": "path", "required": True, "schema": services}
    for variable in rule.segments:
        schema = {"type": "string"} if rule.resource else schemas.field(rule.field(variable))
        yield {"name": variable, "in": "path", "required": True, "schema": schema}


def _query_parameters(rule: HttpRule, schemas: Schemas) -> Iterator[Json]:
    if rule.body == "*" or rule.rpc.method.client_streaming:
        return
    named = {rule.body, *rule.variables}
    for name, schema in _flattened(rule.rpc.method.input_type, schemas, ""):
        if name.partition(".")[0] not in named and name not in named:
            yield {"name": name, "in": "query", "schema": schema}


def _flattened(message: Descriptor, schemas: Schemas, prefix: str) -> Iterator[tuple[str, Json]]:
    """Yield the fields that a query can have. A field of a message within has a dotted name."""
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.full_name in WELL_KNOWN:
            yield f"{prefix}{field.name}", schemas.field(field)
        elif not field.is_repeated:
            yield from _flattened(inner, schemas, f"{prefix}{field.name}.")
