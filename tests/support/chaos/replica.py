"""A replica of the session service with failpoints, forked anew after each kill."""

import os
import signal
import sys
from pathlib import Path

from spawnmesh_devstack.tied import tie
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings
from spawnmesh_session.app import make_server, open_components
from spawnmesh_session.operations.call_limits_feed import open_call_limits_feed
from spawnmesh_session.operations.revocation_feed import open_revocation_feed
from spawnmesh_session.settings import SessionSettings

from tests.support.chaos.failpoints import Failpoints, failing


async def _serve(settings: SessionSettings, folder: Path) -> None:
    def write_pid(_port: int) -> None:
        pid_file = folder / f"{os.getpid()}"
        pid_file.write_text(pid_file.name)
        pid_file.replace(folder / "serving")

    async with (
        start_process("session", settings) as process,
        open_components(process, settings) as components,
        open_revocation_feed(components.database, components.listener, process.revoked) as revocations,
        open_call_limits_feed(
            components.database, components.listener, process.call_limits, settings.call_limits_ceiling
        ) as call_limits,
    ):
        server = make_server(
            process, failing(components, Failpoints(folder)), settings, revocations, call_limits
        )
        await run_until_stopped(process, server, on_ready=write_pid)


def main() -> None:
    """Serve until killed. A replica that ends in another way than by SIGKILL is not replaced."""
    folder, settings, keeper = Path(sys.argv[1]), load_settings(SessionSettings), os.getpid()
    while True:
        replica = os.fork()
        if replica == 0:
            tie(keeper, signal.SIGKILL, "-")
            run_process(_serve(settings, folder))
            return
        _, status = os.waitpid(replica, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit("the replica has ended by itself")


if __name__ == "__main__":
    main()
