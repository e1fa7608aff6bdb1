"""The source of the product, as the tests of the house read it."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def source_of(file: Path) -> str:
    return file.read_text()


def parsed(file: Path) -> ast.Module:
    """Parse a module. That takes long for all of them: search the source first."""
    return ast.parse(source_of(file))


def product_files() -> list[Path]:
    """Return the modules of services and libraries, without the generated ones."""
    files = [*ROOT.glob("services/*/spawnmesh_*/**/*.py"), *ROOT.glob("libs/*/spawnmesh_*/**/*.py")]
    return sorted(file for file in files if "libs/protos/spawnmesh" not in str(file))
