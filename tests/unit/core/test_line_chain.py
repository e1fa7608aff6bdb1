"""A hash that is chained over lines."""

import hashlib

import pytest
from spawnmesh_core.line_chain import NO_LINES, LineChain

DATA = b"one\n\n\ntwo two\nno end"


def chain_of(data: bytes) -> bytes:
    chain = LineChain()
    chain.update(data)
    return chain.value


def test_it_is_what_the_contract_says() -> None:
    first = hashlib.sha256(bytes(32) + b"one\n").digest()
    assert NO_LINES == chain_of(b"") == bytes(32)
    assert chain_of(b"one\n") == first
    assert chain_of(b"one\ntwo") == hashlib.sha256(first + b"two").digest()
    assert chain_of(b"one\ntwo\n") == hashlib.sha256(first + b"two\n").digest()


@pytest.mark.parametrize("piece_bytes", range(1, len(DATA) + 1))
def test_pieces_make_no_difference(piece_bytes: int) -> None:
    chain = LineChain()
    for start in range(0, len(DATA), piece_bytes):
        piece = DATA[start : start + piece_bytes]
        chain.update(piece)
        assert chain.value == chain_of(DATA[: start + len(piece)])


@pytest.mark.parametrize("line_count", [0, 1, 2, 3, 4])
def test_it_goes_on_behind_any_line(line_count: int) -> None:
    lines = DATA.split(b"\n")
    before = b"".join(line + b"\n" for line in lines[:line_count])
    chain = LineChain(chain_of(before))
    assert chain.value == chain_of(before)
    chain.update(DATA[len(before) :])
    assert chain.value == chain_of(DATA)


def test_each_beginning_has_its_own() -> None:
    assert len({chain_of(DATA[:end]) for end in range(len(DATA) + 1)}) == len(DATA) + 1
