"""The parts of an Envoy configuration, as JSON."""

from typing import Any

Json = dict[str, Any]

MIB = 1024 * 1024


def typed(type_name: str, **fields: Any) -> Json:
    """Return a message of Envoy's API in the JSON form of `google.protobuf.Any`."""
    return {"@type": f"type.googleapis.com/{type_name}", **fields}


def extension(name: str, type_name: str, **fields: Any) -> Json:
    """Return a named extension of Envoy with its configuration."""
    return {"name": name, "typed_config": typed(type_name, **fields)}


def socket_address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}
