"""Regular expressions that are run in time linear in the text."""

from collections.abc import Callable

import re2

from spawnmesh_transcript.domain.refusals import search_refused

Finder = Callable[[str], tuple[int, int] | None]
"""Between which characters of a text the pattern first matches."""

_MAX_PROGRAM_BYTES = 8 * 1024 * 1024


def compile_pattern(pattern: str) -> Finder:
    """Raises SEARCH_REFUSED for what is malformed, or cannot be run in linear time, such as back references and looking around."""
    options = re2.Options()
    options.max_mem = _MAX_PROGRAM_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        told = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise search_refused("PATTERN", f"the pattern cannot be run: {told[:200]}") from None

    def find(text: str) -> tuple[int, int] | None:
        found = compiled.search(text)
        return None if found is None else (found.start(), found.end())

    return find
