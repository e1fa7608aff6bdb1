"""Regular expressions that are run in time linear in the text."""

from collections.abc import Callable

import re2

from spawnmesh_transcript.domain.refusals import search_refused

Finder = Callable[[str], tuple[int, int] | None]
"""Between which characters of a text the pattern first matches. Raises SEARCH_REFUSED for a text that is too long for the pattern."""

PROGRAM_LIMIT = 5_000
"""Steps in a compiled pattern. One with a class of Unicode in it has about a thousand, others that people write up to a few hundred."""

COST_LIMIT = 500_000_000
"""Steps of a pattern times bytes of one text: what nothing can stop once it runs.

Linear is not fast: in the worst case each byte of the text costs all the steps, at 1 to 8 ns for each. That is some seconds at the most, and for
patterns that are not made for it a hundredth.
"""

_COMPILED_BYTES = 2 * 1024 * 1024
"""Of a pattern, also with what it learns while it runs; compiling ends at two thirds of it, after some 20 ms."""


def compile_pattern(pattern: str) -> Finder:
    """Raises SEARCH_REFUSED for what is malformed, is too large, or cannot be run in linear time, such as back references and looking around."""
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES
    options.log_errors = False
    options.never_capture = True  # Groups would be looked for once more, at a higher cost.
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        told = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise search_refused("PATTERN", f"the pattern cannot be run: {told[:200]}") from None
    finally:
        re2.purge()  # It would keep the last 128 of them.
    step_count = compiled.programsize
    if step_count > PROGRAM_LIMIT:
        raise search_refused(
            "COST",
            f"the pattern has {step_count} steps, and {PROGRAM_LIMIT} at most are run: repeat less, or smaller parts",
            step_count=step_count,
            step_limit=PROGRAM_LIMIT,
        )

    def find(text: str) -> tuple[int, int] | None:
        text_bytes = len(text) if text.isascii() else len(text.encode())
        if step_count * text_bytes > COST_LIMIT:
            raise search_refused(
                "COST",
                f"the pattern has {step_count} steps, too many for a text of {text_bytes} bytes: make it simpler, "
                "or leave that entry out by the range of seqs",
                step_count=step_count,
                text_bytes=text_bytes,
                text_byte_limit=COST_LIMIT // step_count,
            )
        found = compiled.search(text)
        return None if found is None else (found.start(), found.end())

    return find
