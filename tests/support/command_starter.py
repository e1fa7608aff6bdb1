"""`command_starter.py SOCKET`: run `spawnmesh` for each client in a fork of this process.

The import is most of the time of a command, and it is the same each time. Nothing else is shared:
the command has the arguments, environment and streams of its client, and runs the installed script.
The client receives the exit code when the process ends.
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
    """Serve until standard input ends, as it does when the parent process ends."""
    cli = importlib.import_module("spawnmesh_client.cli")
    for module in pkgutil.iter_modules(cli.__path__, "spawnmesh_client.cli."):
        importlib.import_module(module.name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not to be forked"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The answering processes are not waited for.
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        caller, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            answer(caller)
            return
        caller.close()


def answer(caller: socket.socket) -> None:
    """Fork again, to wait for the command and send its exit code.

    Returns only in the process of the command.
    """
    with caller.makefile("rw") as asked:
        request = json.loads(asked.readline())
        pid = os.fork()
        if pid:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=asked, flush=True)
            os._exit(0)
    caller.close()
    run(request)


def run(request: dict[str, Any]) -> None:
    """Run the command in this process."""
    for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        os.dup2(os.open(f"{request['folder']}/{name}", flags), number)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = [SCRIPT, *request["arguments"]]
    runpy.run_path(SCRIPT, run_name="__main__")


if __name__ == "__main__":
    main()
