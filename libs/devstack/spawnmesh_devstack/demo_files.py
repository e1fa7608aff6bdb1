"""The files of the demo, generated each time, and the facts in them."""

import csv
import hashlib
import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from random import Random

TABLE, TEXT, PICTURE = "ledger.csv", "journal.txt", "map.png"

WORDS = (
    "harbour",
    "lantern",
    "orchard",
    "copper",
    "meadow",
    "signal",
    "river",
    "winter",
    "anchor",
    "granite",
)
_SIDE_PIXELS = 48


@dataclass(frozen=True, slots=True)
class Truth:
    """The facts that an answer about the files must contain."""

    sum_of_amount: int
    line_count: int
    picture_sha256: str


def make_files(directory: Path, seed: int, *, small: bool = False) -> Truth:
    """Write a table, a text and a picture, and read the facts from the bytes on disk. Another seed
    gives other files.

    `small` files have few enough lines for a model that adds and counts without tools.
    """
    random = Random(seed)  # noqa: S311 - made-up figures, no secrets
    directory.mkdir(parents=True, exist_ok=True)
    (directory / TABLE).write_bytes(
        _table(random, random.randint(5, 7) if small else random.randint(180, 240))
    )
    (directory / TEXT).write_bytes(_text(random, random.randint(6, 9) if small else random.randint(90, 140)))
    (directory / PICTURE).write_bytes(_picture(random))
    return truth_of(directory)


def truth_of(directory: Path) -> Truth:
    """Return the facts of the files in a directory."""
    with (directory / TABLE).open(newline="") as table:
        total = sum(int(row["amount"]) for row in csv.DictReader(table))
    return Truth(
        sum_of_amount=total,
        line_count=(directory / TEXT).read_bytes().count(b"\n"),
        picture_sha256=hashlib.sha256((directory / PICTURE).read_bytes()).hexdigest(),
    )


def _table(random: Random, row_count: int) -> bytes:
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("day", "account", "amount"))
    for day in range(1, row_count + 1):
        writer.writerow((day, random.choice(WORDS), random.randint(-500, 2500)))
    return lines.getvalue().encode()


def _text(random: Random, line_count: int) -> bytes:
    lines = (" ".join(random.choices(WORDS, k=random.randint(3, 9))) for _ in range(line_count))
    return "".join(f"{line}\n" for line in lines).encode()


def _picture(random: Random) -> bytes:
    """Return a PNG with 8 bits for each of red, green and blue."""
    tint = random.randbytes(3)
    rows = b"".join(
        b"\0" + b"".join(bytes((level * (x + y)) % 256 for level in tint) for x in range(_SIDE_PIXELS))
        for y in range(_SIDE_PIXELS)
    )
    header = struct.pack(">IIBBBBB", _SIDE_PIXELS, _SIDE_PIXELS, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a directory."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}
