"""A service's SQL, kept in files and called by name."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


def load_statements(package: str) -> dict[str, str]:
    """The statements in `<package>/sql/*.sql` by name.

    A statement begins at a line `-- name: claim_runs` and ends at the next one. The comment lines under the name say its locks and its index.
    Raises ValueError where two statements share a name.
    """
    statements: dict[str, str] = {}
    for file in sorted((files(package) / "sql").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in statements:
                raise ValueError(f"two statements of {package} are named {name}")
            statements[name] = body.strip()
    return statements
