"""Named SQL statements, kept in a file beside the module that runs them."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


def load_statements(module: str) -> dict[str, str]:
    """Return the statements of `<module>.sql`, which lies beside `<module>.py`, by name.

    A store module calls it with its `__name__`. A statement begins at a line `-- name: claim_runs`
    and ends at the next such line. Raises ValueError if two statements of the file share a name.
    """
    package, _, name = module.rpartition(".")
    parts = _NAME.split((files(package) / f"{name}.sql").read_text(encoding="utf-8"))
    statements: dict[str, str] = {}
    for statement, body in zip(parts[1::2], parts[2::2], strict=True):
        if statement in statements:
            raise ValueError(f"two statements of {module} are named {statement}")
        statements[statement] = body.strip()
    return statements
