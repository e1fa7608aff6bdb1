"""Become another program that gets a signal when its parent dies: `tied.py PARENT_PID SIGNAL USER
-- argv...`.

A bare interpreter runs this file, so it imports the standard library only. USER is a system account
to switch to, or `-` for none.
"""

import ctypes
import os
import pwd
import sys

_PR_SET_PDEATHSIG = 1


def tie(parent_pid: int, signal_number: int, user: str) -> None:
    """Ask Linux for the signal at the death of the parent's thread; elsewhere only the watchdog
    guards.
    """
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if user != "-":
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    # This follows the change of user, which clears the request.
    if libc is not None and libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # the parent died before the request: no signal will ever come
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then replace it. It never returns."""
    parent_pid, signal_number, user, separator, *argv = arguments
    if separator != "--" or not argv:
        sys.exit("usage: tied.py PARENT_PID SIGNAL USER -- argv...")
    tie(int(parent_pid), int(signal_number), user)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - starting the given program is what this file is for
    except OSError as error:
        sys.exit(f"cannot run {os.path.basename(argv[0])}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
