"""The command lines that start a program: in a sandbox, by either backend, or without one."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024

_HERE = Path(__file__).parent
_BARE_PYTHON = (sys.executable, "-I", "-S")
_TMP_BYTES = 64 * MIB
# Programs and libraries. On most systems all but the first are links into it.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Nothing of `/etc` but what libraries look up.
_ETC = (
    "alternatives",
    "ca-certificates",
    "group",
    "ld.so.cache",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "pki/tls/certs",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_ETC_OF_NETWORK = ("gai.conf", "hosts", "resolv.conf", "services")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of a program: of all its processes together their number, of each the others.

    The memory is both: the kernel bounds the private memory of each process by it, and a watch or a
    cgroup all memory of all of them.
    """

    memory_bytes: int
    processes: int
    open_files: int
    file_bytes: int
    cpu_seconds: int


@dataclass(frozen=True, slots=True)
class Confinement:
    """The files, network and resources of a program in a sandbox."""

    workspace: Path
    """Its working directory, and the one place for files that outlive it."""
    paths: tuple[str, ...]
    """Files and directories that it may read beside the system's programs and libraries."""
    network: bool
    limits: ProcessLimits
    cgroup: Path | None = None
    """The cgroup that it joins before it starts."""


CommandLine = Callable[[Sequence[str], Confinement], list[str]]
"""Return the command line that starts a program, given by its absolute path, and its arguments.

The program is killed with the process that starts it.
"""


def unsandboxed(arguments: Sequence[str], confinement: Confinement) -> list[str]:
    """Start the program as the user of this process, with all that it may do."""
    cgroup = str(confinement.cgroup or "")
    return [*_BARE_PYTHON, str(_HERE / "launch.py"), str(os.getpid()), cgroup, *arguments]


def namespaces(arguments: Sequence[str], confinement: Confinement) -> list[str]:
    """Start the program in a sandbox that `enter.py` makes."""
    links, system = _system(confinement.network)
    limits = _resource_limits(confinement.limits)
    specification = {
        "arguments": list(arguments),
        "workspace": str(confinement.workspace),
        "cgroup": str(confinement.cgroup or ""),
        "links": links,
        "read_only": [*system, *_own_paths(arguments[0], confinement)],
        "network": confinement.network,
        "limits": limits,
        "tmp_bytes": _TMP_BYTES,
    }
    return [*_BARE_PYTHON, str(_HERE / "enter.py"), str(os.getpid()), json.dumps(specification)]


def bubblewrap(arguments: Sequence[str], confinement: Confinement) -> list[str]:
    """Start the program in a sandbox that Bubblewrap 0.8 or later makes.

    `prlimit` sets the limits inside: outside, the number of processes would be the user's.
    """
    links, system = _system(confinement.network)
    workspace = str(confinement.workspace)
    line = ["bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--cap-drop", "ALL", "--hostname", "sandbox", "--die-with-parent"]
    line += [] if confinement.network else ["--unshare-net"]
    for path, target in links.items():
        line += ["--symlink", target, path]
    for path in system:
        line += ["--ro-bind", path, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):  # noqa: S108 - of the sandbox
        line += ["--size", str(_TMP_BYTES), "--perms", "1777", "--tmpfs", path]
    line += ["--remount-ro", "/dev"]
    for path in _own_paths(arguments[0], confinement):
        line += ["--ro-bind", path, path]
    line += ["--bind", workspace, workspace, "--remount-ro", "/", "--chdir", workspace, "--", "prlimit"]
    line += [f"--{name}={value}" for name, value in _resource_limits(confinement.limits).items()]
    program = shutil.which(line[0])
    return unsandboxed([program or line[0], *line[1:], "--", *arguments], confinement)


def _system(network: bool) -> tuple[dict[str, str], list[str]]:
    """Return the links and the paths of the system that every program may read."""
    names = (*_ETC, *_ETC_OF_NETWORK) if network else _ETC
    found = [path for path in (*_SYSTEM, *(f"/etc/{name}" for name in names)) if os.path.exists(path)]
    links = {path: os.readlink(path) for path in found if path in _SYSTEM and os.path.islink(path)}
    return links, [path for path in found if path not in links]


def _own_paths(program: str, confinement: Confinement) -> list[str]:
    """Return the program and the paths of its operator, each after those that contain it."""
    visible = [Path(path) for path in (*_SYSTEM, *confinement.paths)]
    is_visible = any(Path(program).is_relative_to(path) for path in visible)
    return sorted(confinement.paths if is_visible else (*confinement.paths, program))


def _resource_limits(limits: ProcessLimits) -> dict[str, int]:
    """Return the limits by their names in `prlimit` and `RLIMIT_…`, none above the runner's own."""
    wanted = {
        "data": limits.memory_bytes,
        "nproc": limits.processes,
        "nofile": limits.open_files,
        "fsize": limits.file_bytes,
        "cpu": limits.cpu_seconds,
        "core": 0,
    }
    return {name: _possible(name, value) for name, value in wanted.items()}


def _possible(name: str, value: int) -> int:
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
