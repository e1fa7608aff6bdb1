"""The SQL statements of the transcript service."""

from importlib.resources import files

from spawnmesh_postgres.statements import load_statements


def all_statements() -> dict[str, str]:
    """Return the statements of all store modules by name."""
    statements: dict[str, str] = {}
    for file in (files("spawnmesh_transcript") / "store").iterdir():
        if file.name.endswith(".sql"):
            own = load_statements(f"spawnmesh_transcript.store.{file.name.removesuffix('.sql')}")
            assert not own.keys() & statements.keys()
            statements |= own
    return statements
