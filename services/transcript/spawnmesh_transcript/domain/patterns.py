"""Regular expressions that run in time linear in the text."""

from collections.abc import Callable

import re2

from spawnmesh_transcript.domain.refusals import search_refused

Finder = Callable[[str], tuple[int, int] | None]
"""Return the characters of a text that the pattern matches first.

Raises SEARCH_REFUSED for a text that is too long for the pattern.
"""

PROGRAM_LIMIT = 5_000
"""Largest number of steps of a compiled pattern.

A pattern with a Unicode class has about a thousand; other patterns that people write have up to a
few hundred.
"""

COST_LIMIT = 500_000_000
"""Largest product of a pattern's steps and the bytes of one text: nothing can stop the match once
it runs.

Linear is not fast: in the worst case each byte costs all the steps, at 1 to 8 ns each. That is a
few seconds at most, and a hundredth of that for patterns that were not built for it.
"""

_COMPILED_BYTES = 2 * 1024 * 1024
"""Memory of a pattern, including its cache at run time.

Compilation fails at two thirds of it, after about 20 ms.
"""


def compile_pattern(pattern: str) -> Finder:
    """Compile a pattern.

    Raises SEARCH_REFUSED if it is malformed, too large, or cannot run in linear time.

    Back references and lookarounds cannot.
    """
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES
    options.log_errors = False
    options.never_capture = True  # Groups would cost a second, slower pass.
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        detail = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise search_refused("PATTERN", f"the pattern cannot be run: {detail[:200]}") from None
    finally:
        re2.purge()  # The library would cache the last 128 patterns.
    step_count = compiled.programsize
    if step_count > PROGRAM_LIMIT:
        raise search_refused(
            "COST",
            f"the pattern has {step_count} steps, and {PROGRAM_LIMIT} at most are run: "
            "repeat less, or smaller parts",
            step_count=step_count,
            step_limit=PROGRAM_LIMIT,
        )

    def find(text: str) -> tuple[int, int] | None:
        text_bytes = len(text) if text.isascii() else len(text.encode())
        if step_count * text_bytes > COST_LIMIT:
            raise search_refused(
                "COST",
                f"the pattern has {step_count} steps, too many for a text of {text_bytes} bytes: "
                "make it simpler, or leave that entry out by the range of seqs",
                step_count=step_count,
                text_bytes=text_bytes,
                text_byte_limit=COST_LIMIT // step_count,
            )
        found = compiled.search(text)
        return None if found is None else (found.start(), found.end())

    return find
