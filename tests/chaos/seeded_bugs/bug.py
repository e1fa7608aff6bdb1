"""A bug that can be seeded: what it changes in the product, and the tests that must catch it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement in a file. The old text occurs in it once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SeededBug:
    """A bug, and the tests of which at least one must fail with it.

    A test is named by its file, or by `file::function` where the others of the file take long.
    """

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
