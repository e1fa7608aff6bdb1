"""Becomes another program, which is killed when its parent dies: `launch.py PARENT_PID PROGRAM [ARGUMENT…]`.

Run as a file by a bare interpreter, so it imports the standard library only: whoever kills a runner outright is not to have its servers left.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, program: str, arguments: list[str]) -> None:
    """Asks Linux for the signal, then becomes the program; returns never. Elsewhere it is not asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # It died before: no signal will ever come.
            sys.exit(1)
    os.execv(program, [program, *arguments])  # noqa: S606 - starting the given program is what this file is for


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
