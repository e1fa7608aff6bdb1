"""Named SQL statements, kept in a file beside the module that runs them."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


def load_statements(module: str) -> dict[str, str]:
    """Return the statements of `<module>.sql`, which lies beside `<module>.py`, by name.

    A store module calls it with its `__name__`. Raises ValueError if two statements of the file
    share a name.
    """
    package, _, name = module.rpartition(".")
    return named_statements((files(package) / f"{name}.sql").read_text(encoding="utf-8"))


def named_statements(text: str) -> dict[str, str]:
    """Return the statements of a file by name.

    A statement begins at a line `-- name: claim_runs` and ends at the next such line. Raises
    ValueError if two statements share a name.
    """
    parts = _NAME.split(text)
    statements: dict[str, str] = {}
    for statement, body in zip(parts[1::2], parts[2::2], strict=True):
        if statement in statements:
            raise ValueError(f"two statements are named {statement}")
        statements[statement] = body.strip()
    return statements
