"""The command `spawnmesh` as a person has to type it in the shell that has started this process."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

_VARIABLE = "SPAWNMESH_COMMAND"
"""`make` sets it to a path in `.venv`, which is on the PATH of make alone."""
_NAME = "spawnmesh"


def typed_command(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = sys.argv) -> str:
    """Return `spawnmesh` if the PATH leads to the program that runs, else the way to it."""
    if given := environment.get(_VARIABLE):
        return given
    program = arguments[0]
    if os.path.basename(program) != _NAME:  # as with `python -m spawnmesh_command`
        return f"{shlex.quote(sys.executable)} -m spawnmesh_command"
    found = shutil.which(_NAME, path=environment.get("PATH", ""))
    return _NAME if found and os.path.samefile(found, program) else shlex.quote(program)
