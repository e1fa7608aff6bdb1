"""The demo's files: real formats, different each time, and the truth about them."""

import struct
import zlib

from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, hashes, make_files


def test_truth_is_what_the_bytes_say(tmp_path):
    truth = make_files(tmp_path, seed=7)

    rows = (tmp_path / TABLE).read_text().splitlines()[1:]
    assert truth.sum_of_amount == sum(int(row.rsplit(",", 1)[1]) for row in rows)
    assert truth.line_count == len((tmp_path / TEXT).read_text().splitlines())
    assert truth.picture_sha256 == hashes(tmp_path)[PICTURE]


def test_picture_is_a_png_whose_checksums_hold(tmp_path):
    make_files(tmp_path, seed=7)
    data = (tmp_path / PICTURE).read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")

    at, kinds, pixels = 8, [], b""
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + body),)
        kinds.append(kind)
        pixels += body if kind == b"IDAT" else b""
        width, height = struct.unpack_from(">II", data, 16)
        at += length + 12
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert len(zlib.decompress(pixels)) == height * (1 + 3 * width)


def test_another_seed_gives_another_truth_and_small_files_are_small(tmp_path):
    first, second = make_files(tmp_path / "a", seed=1), make_files(tmp_path / "b", seed=2)
    small = make_files(tmp_path / "c", seed=1, small=True)

    assert first.sum_of_amount != second.sum_of_amount
    assert first.picture_sha256 != second.picture_sha256
    assert small.line_count < 10 < first.line_count
