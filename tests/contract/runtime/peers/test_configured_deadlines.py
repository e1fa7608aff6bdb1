"""Clients set the deadline of each call: gRPC ends a call early by that of a service config.

If this test fails, gRPC keeps the deadline, and docs/howto/clients.md says something that is over.
"""

import json
from typing import Any

import grpc
import grpc.aio
import pytest

_CONFIG = {"methodConfig": [{"name": [{"service": "a.Quick"}], "timeout": "0.5s"}]}


async def test_half_a_second_of_a_service_config_is_over_before_the_call_is_sent() -> None:
    reached = []

    async def answer(_request: bytes, _context: Any) -> bytes:
        reached.append(1)
        return b""

    server = grpc.aio.server()
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Quick", handlers),))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    options = [("grpc.enable_http_proxy", 0), ("grpc.service_config", json.dumps(_CONFIG))]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        await channel.channel_ready()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await channel.unary_unary("/a.Quick/Ask")(b"", timeout=60)
    assert (ended.value.code(), reached) == (grpc.StatusCode.DEADLINE_EXCEEDED, [])
    async with grpc.aio.insecure_channel(target, options=options[:1]) as channel:
        await channel.unary_unary("/a.Quick/Ask")(b"", timeout=60)
    assert reached == [1]
    await server.stop(None)
