"""Compressed requests are refused before they are inflated."""

import grpc
import grpc.aio
import pytest

from tests.support.security.attacked import Attacked
from tests.support.security.raw_calls import METHODS, allowed_token, bearer, refused


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_request_is_refused_with_and_without_a_token(
    attacked: Attacked, channel: grpc.aio.Channel, algorithm: grpc.Compression
) -> None:
    for method in METHODS.values():
        for headers in ((), (bearer(allowed_token(attacked.keys, method)),)):
            got = await refused(channel, method, b"\x00" * 1024, headers=headers, compression=algorithm)
            assert got.code == "UNIMPLEMENTED", (method.full_name, got)
    assert attacked.reached == []


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_bomb_that_inflates_to_more_than_a_message_may_have_is_refused_as_compressed(
    attacked: Attacked, algorithm: grpc.Compression
) -> None:
    bomb = bytes(256 * 1024**2)  # It takes a quarter of a MiB on the wire.
    options = [("grpc.max_send_message_length", -1)]
    method = METHODS["spawnmesh.session.v1.SessionService.SpawnSession"]
    async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
        for headers in ((), (bearer(allowed_token(attacked.keys, method)),)):
            got = await refused(channel, method, bomb, headers=headers, compression=algorithm)
            # Had it been inflated, its size would be refused.
            assert got.code == "UNIMPLEMENTED"
    assert attacked.reached == []
