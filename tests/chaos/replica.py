"""`python -m tests.chaos.replica FOLDER`: the session service, with failpoints told of in the folder; started anew whenever it is killed.

Each replica is a process of its own, forked from one that has read all modules and has opened nothing yet: so the next one is there at once.
"""

import os
import signal
import sys
from pathlib import Path

from spawnmesh_devstack.tied import tie
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings
from spawnmesh_session.app import open_parts, server_of
from spawnmesh_session.settings import SessionSettings

from tests.chaos.failpoints import Failpoints, failing


async def _serve(settings: SessionSettings, folder: Path) -> None:
    def tell_ready(_port: int) -> None:
        told = folder / f"{os.getpid()}"
        told.write_text(told.name)
        told.replace(folder / "serving")

    async with start_process("session", settings) as process, open_parts(process, settings) as parts:
        server = server_of(process, failing(parts, Failpoints(folder)), settings)
        await run_until_stopped(process, server, on_ready=tell_ready)


def main() -> None:
    """Serves until it is killed itself; a replica that ends in another way than by SIGKILL is not replaced."""
    folder, settings, keeper = Path(sys.argv[1]), load_settings(SessionSettings), os.getpid()
    while True:
        replica = os.fork()
        if replica == 0:
            tie(keeper, signal.SIGKILL, "-")
            run(_serve(settings, folder))
            return
        _, status = os.waitpid(replica, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit("the replica has ended by itself")


if __name__ == "__main__":
    main()
