"""Pages of a list that looks at a bounded number of rows, whatever its filter leaves out.

A statement of such a list numbers the rows in their order up to its limit. It returns those that
match (`is_match`), and also the last one up to the limit (`is_end`), which may not match.
"""

from collections.abc import Sequence

from psycopg.rows import DictRow


def bounded_page(rows: Sequence[DictRow], page_size: int) -> tuple[Sequence[DictRow], DictRow | None]:
    """Return the rows of the page, and the row after which the next page begins, if there is one.

    `rows` has one row more than the page if there are so many. The page can be empty although
    there is a next one.
    """
    found = [row for row in rows if row["is_match"]]
    if len(found) > page_size:
        return found[:page_size], found[page_size - 1]
    return found, rows[-1] if rows and rows[-1]["is_end"] else None
