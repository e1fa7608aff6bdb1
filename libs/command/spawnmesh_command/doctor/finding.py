"""The finding of a check."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    `ok` is None if it could not be made; `advice` is empty unless something is wrong.
    """

    name: str
    ok: bool | None
    detail: str
    advice: str = ""
