"""The check value of the chunks of an upload."""

import random

import google_crc32c
import pytest
from spawnmesh_client.crc32c import crc32c

LANES = 4096


@pytest.mark.parametrize(
    "size", [0, 1, 9, LANES - 1, LANES, LANES + 1, 2 * LANES, 77_777, 1024 * 1024, 1024 * 1024 + 5]
)
def test_value_is_that_of_a_compiled_package(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == google_crc32c.value(data)


def test_value_of_the_standard_text() -> None:
    assert crc32c(b"123456789") == 0xE3069283
