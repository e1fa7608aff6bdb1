"""Pages of a list that looks at a bounded number of rows, whatever its filter leaves out.

A statement of such a list numbers the rows in their order up to its limit. It returns those that
match (`is_match`), and also the last one up to the limit (`is_end`), which may not match.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ScannedRow(Generic[Item]):
    """A row of such a statement: the item that it shows, and its two marks."""

    item: Item
    is_match: bool
    is_end: bool


def scanned_row(make: Callable[..., Item]) -> Callable[..., ScannedRow[Item]]:
    """Return a function that makes a row from its columns by name, for psycopg's `kwargs_row`.

    `make` gets the columns without the two marks.
    """

    def make_row(*, is_match: bool, is_end: bool, **columns: Any) -> ScannedRow[Item]:
        return ScannedRow(make(**columns), is_match, is_end)

    return make_row


def bounded_page(rows: Sequence[ScannedRow[Item]], page_size: int) -> tuple[list[Item], Item | None]:
    """Return the items of the page, and the one after which the next page begins, if there is one.

    `rows` has one row more than the page if there are so many. The page can be empty although
    there is a next one.
    """
    found = [row.item for row in rows if row.is_match]
    if len(found) > page_size:
        return found[:page_size], found[page_size - 1]
    return found, rows[-1].item if rows and rows[-1].is_end else None
