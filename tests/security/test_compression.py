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
