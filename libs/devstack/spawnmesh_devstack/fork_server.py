"""`python -m spawnmesh_devstack.fork_server FD MODULE…`: run programs in forks of this process.

It imports the code of the mesh's processes, and the modules that are named.

The imports are most of the time in which a process of the mesh or a command starts, and they are
the same each time. A fork shares nothing else: it has the arguments, environment, directory and
streams of the request, a session of its own, and a signal for the death of the server. It runs its
module or script as an interpreter does, and ends as one.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from typing import Any

from spawnmesh_devstack.tied import tie

MESSAGE_BYTES = 65_536
_PR_SET_NAME = 15

MODULES = (
    "spawnmesh_runner",  # Before gRPC is loaded, for which its package has a setting.
    "spawnmesh_session.__main__",
    "spawnmesh_attachment_blob.__main__",
    "spawnmesh_transcript.__main__",
    "spawnmesh_model_router.__main__",
    "spawnmesh_hook.__main__",
    "spawnmesh_runner.__main__",
    "spawnmesh_console.__main__",
    "spawnmesh_devstack.scripted_model",
    "spawnmesh_devstack.otlp_sink",
)
"""The code of the processes of a mesh."""


def main() -> None:
    """Serve until the client closes its side of the socket."""
    link = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for module in (*MODULES, *sys.argv[2:]):
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    if len(os.listdir("/proc/self/task")) != 1:
        raise SystemExit("a process with threads is not to be forked")
    try:
        link.send(b"{}")
    except BrokenPipeError:  # The client was killed meanwhile.
        return
    program = _serve(link)
    if program is not None:
        _run(program)


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Answer requests. Return a program only in the process that is to run it."""
    server = os.getpid()
    while True:
        message, streams, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 3)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            link.send(json.dumps({"code": os.waitstatus_to_exitcode(status) if pid else None}).encode())
            continue
        ready, prepared = os.pipe()
        if (pid := os.fork()) == 0:
            link.close()
            os.close(ready)
            _prepare(request, streams, server)
            os.close(prepared)
            return request
        for descriptor in (*streams, prepared):
            os.close(descriptor)
        os.read(ready, 1)  # Ends when the fork is prepared, or has ended.
        os.close(ready)
        link.send(json.dumps({"pid": pid}).encode())


def _prepare(program: dict[str, Any], streams: list[int], server: int) -> None:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    faulthandler.enable()
    os.chdir(program["directory"])
    os.environ.clear()
    os.environ.update(program["env"])
    if name := program["name"]:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    tie(server, program["orphan_signal"], "-")


def _run(program: dict[str, Any]) -> None:
    first, *arguments = program["argv"]
    if first != "-m":
        sys.argv[:] = [first, *arguments]
        sys.path[0] = os.path.dirname(first)
        runpy.run_path(first, run_name="__main__")
        return
    name = arguments[0]
    sys.argv[:] = arguments
    paths = program["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [program["directory"], *filter(None, paths)]
    for module in (name, f"{name}.__main__"):
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)  # It runs anew, as `__main__`.
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
