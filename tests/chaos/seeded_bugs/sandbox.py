"""A copy of the repository with a Python of its own, in which a bug can be seeded."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.seeded_bugs.bug import Change, SeededBug

ROOT = Path(__file__).resolve().parents[3]
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "__pycache__", "node_modules")
_LONGEST_SECONDS = 900
_ENDED = 124  # As of `timeout`.


class NotApplicable(Exception):
    """The product has changed: the old text of a change is not there exactly once."""


def changed(text: str, change: Change) -> str:
    """Return the text with the change. Raise NotApplicable if it does not fit exactly once."""
    if (count := text.count(change.old)) != 1:
        raise NotApplicable(f"{change.path} has the text to be changed {count} times: {change.old!r}")
    return text.replace(change.old, change.new)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The copy, and the Python whose packages are those of the copy."""

    root: Path
    python: Path

    def run_tests(self, paths: Sequence[str], log: Path) -> int:
        """Run the tests until one fails; return pytest's exit code, which is 0 if all pass.

        Tests that do not end within a quarter of an hour are ended, and have failed.
        """
        options = ("-x", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
        with log.open("wb") as output, suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                [str(self.python), "-m", "pytest", *options, *paths],
                cwd=self.root,
                env={**os.environ, "PATH": f"{self.python.parent}:{os.environ['PATH']}"},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_LONGEST_SECONDS,
                check=False,
            ).returncode
        return _ENDED

    @contextmanager
    def seeded(self, bug: SeededBug) -> Iterator[None]:
        """Apply the bug's changes for the block. Raise NotApplicable if one does not fit."""
        originals: dict[Path, str] = {}
        try:
            for change in bug.changes:
                path = self.root / change.path
                text = path.read_text()
                originals.setdefault(path, text)
                path.write_text(changed(text, change))
            yield
        finally:
            for path, text in originals.items():
                path.write_text(text)


def make_sandbox(folder: Path) -> Sandbox:
    """Copy the repository into the folder, which must be empty, and make its Python.

    The Python finds the packages of the copy first, and everything else where this one finds it.
    """
    root = folder / "repository"
    shutil.copytree(ROOT, root, ignore=_NOT_COPIED)
    home = folder / "python"
    venv.create(home, symlinks=True)
    packages = [*sorted((root / "libs").iterdir()), *sorted((root / "services").iterdir())]
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    lines = [str(path) for path in packages if path.is_dir()]
    lines.append(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    (site / "sandbox.pth").write_text("\n".join(lines) + "\n")
    for command in Path(sys.executable).parent.iterdir():
        if not (home / "bin" / command.name).exists() and command.is_file():
            shutil.copy2(command, home / "bin" / command.name)
    return Sandbox(root, home / "bin" / "python")
