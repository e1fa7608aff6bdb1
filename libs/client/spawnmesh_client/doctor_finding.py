"""What a look at the mesh finds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `ok` is None where it could not be looked at; `advice` is empty unless something is wrong."""

    name: str
    ok: bool | None
    detail: str
    advice: str = ""
