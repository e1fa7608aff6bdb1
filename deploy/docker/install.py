"""Install one deployable with its dependencies into a new virtual environment.

Usage: `install.py NAME DIRECTORY`. The image is built with it, and the tests run it. It needs
`hatchling` beside it, and takes every version from constraints.txt.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OURS = re.compile(r"spawnmesh-([a-z-]+)")


def folder_of(name: str) -> Path:
    """Return the folder of a part of the repository. An unknown name ends the process with
    one line.
    """
    for kind in ("services", "libs"):
        if (ROOT / kind / name / "pyproject.toml").exists():
            return ROOT / kind / name
    raise SystemExit(f"there is no service and no library called {name!r}")


def closure(name: str) -> list[Path]:
    """Return the folders of the part and of all parts of this repository on which it
    depends, sorted.
    """
    found: set[Path] = set()
    waiting = [name]
    while waiting:
        folder = folder_of(waiting.pop())
        if folder not in found:
            found.add(folder)
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            ours = (_OURS.match(dependency) for dependency in project["dependencies"])
            waiting += [match.group(1) for match in ours if match]
    return sorted(found)


def install(name: str, directory: Path) -> None:
    """Create the environment."""
    constraints = ROOT / "constraints.txt"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    venv.create(directory, with_pip=False, clear=True)
    with tempfile.TemporaryDirectory() as wheels:
        folders = map(str, closure(name))
        wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *folders]
        subprocess.run(wheel, check=True)  # noqa: S603
        into = [*pip, "--python", str(directory / "bin" / "python"), "install", "-c", str(constraints)]
        subprocess.run([*into, *map(str, sorted(Path(wheels).glob("*.whl")))], check=True)  # noqa: S603


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: install.py NAME DIRECTORY")
    install(sys.argv[1], Path(sys.argv[2]))
