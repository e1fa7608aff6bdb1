"""`command_starter.py SOCKET`: runs `spawnmesh` for whoever connects, each in a process forked from this one, which has imported it already.

Importing is most of what a command costs, and the same each time. Nothing else is shared: arguments, environment and streams are the
caller's, it is the installed script that runs, and its exit code is told as its process ends.
"""

import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

SCRIPT = str(Path(sys.executable).with_name("spawnmesh"))


def main() -> None:
    """Serves until its input ends, as it does with whoever started it."""
    cli = importlib.import_module("spawnmesh_client.cli")
    for module in pkgutil.iter_modules(cli.__path__, "spawnmesh_client.cli."):
        importlib.import_module(module.name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not to be forked"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those who answer.
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        caller, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            answer(caller)
            return
        caller.close()


def answer(caller: socket.socket) -> None:
    """Forks once more, to wait for the command and tell its exit code. Returns in no process but the command's, which has ended."""
    with caller.makefile("rw") as asked:
        request = json.loads(asked.readline())
        pid = os.fork()
        if pid:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=asked, flush=True)
            os._exit(0)
    caller.close()
    run(request)


def run(request: dict[str, Any]) -> None:
    """Becomes the command."""
    for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        os.dup2(os.open(f"{request['folder']}/{name}", flags), number)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = [SCRIPT, *request["arguments"]]
    runpy.run_path(SCRIPT, run_name="__main__")


if __name__ == "__main__":
    main()
