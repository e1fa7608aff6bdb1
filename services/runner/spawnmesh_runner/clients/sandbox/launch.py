"""Execute another program that is killed when its parent dies:

`launch.py PARENT_PID CGROUP PROGRAM [ARGUMENT…]`. An empty CGROUP is none.

A bare interpreter runs this file, so it imports the standard library only. It ensures that a killed
runner leaves no MCP servers behind.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, cgroup: str, program: str, arguments: list[str]) -> None:
    """Join the cgroup, take the lowest priority, ask Linux for the parent-death signal, and execute
    the program.

    Other systems have no such signal.
    """
    if cgroup:
        with open(f"{cgroup}/cgroup.procs", "w") as file:
            file.write("0")
    os.nice(19)  # However many processes the program has, the runner gets a processor first.
    if sys.platform == "linux":
        # Out of memory, the kernel ends the program, not the runner.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # The parent died before, so no signal will come.
            sys.exit(1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the program should not.
        signal.signal(number, signal.SIG_DFL)
    os.execv(program, [program, *arguments])  # noqa: S606 - the purpose of this file


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
