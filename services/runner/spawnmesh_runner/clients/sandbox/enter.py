"""Execute a program in namespaces of its own: `enter.py PARENT_PID SPECIFICATION`.

The specification is JSON, as `command_line.py` writes it. A bare interpreter runs this file, so it
imports the standard library only.

Two processes stay while the program runs. The outer one is a child of the runner, is killed with
it, and has the program's exit code. The inner one is process 1 of the program's pid namespace. When
it ends, the kernel kills every process of that namespace.

Linux 5.14 is needed: for `mount_setattr`, and because older kernels count the processes of a user
over all namespaces.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SANDBOX_ID = 65_533
"""The user and group of the program if the runner is root. Otherwise it keeps the runner's."""

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC, _ATTR_IDMAP = 1, 2, 4, 8, 0x100000
# Calls of one number on every architecture.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_NEW_ROOT = "/tmp"  # noqa: S108 - a mount point of the new namespace; the directory is not written to
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_CANNOT_EXECUTE = 127

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(kind: str | None, target: str, flags: int, options: str = "") -> None:
    source = (kind or "none").encode()
    fs = kind.encode() if kind else None
    result = _libc.mount(source, target.encode(), fs, ctypes.c_ulong(flags), options.encode() or None)
    _checked(f"mount {kind or 'private'}", result)


def _tmpfs(target: str, mode: str, size_bytes: int) -> None:
    _mount("tmpfs", target, _MS_NOSUID | _MS_NODEV, f"mode={mode},size={size_bytes},nr_inodes=16384")


def _tree(path: str, flags: int = 0) -> int:
    """Return a descriptor of a copy of the mount at the path, not attached anywhere."""
    flags |= _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _checked("open_tree", _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, path.encode(), flags))


def _restrict(fd: int, path: str, flags: int, attributes: int, userns_fd: int = 0) -> None:
    given = struct.pack("=4Q", attributes, 0, 0, userns_fd)
    result = _libc.syscall(_SYS_MOUNT_SETATTR, fd, path.encode(), flags, given, len(given))
    _checked("mount_setattr", result)


def _attach(tree: int, target: str) -> None:
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    _checked("move_mount", _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), flags))


def _prctl(option: int, first: int = 0, second: int = 0) -> int:
    result: int = _libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), 0, 0)
    return result


def _in_child(action: Callable[[], None]) -> int:
    """Run the action in a child process that ends with it, and return the child's id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        action()
        status = 0
    except BaseException as error:  # noqa: BLE001 - a child never returns into the caller's frames
        _say(error)
    os._exit(status)


def _say(error: BaseException) -> None:
    os.write(2, f"sandbox: {error}\n".encode())


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _map_ids(pid: int, inside: int, uid: int, gid: int) -> None:
    """Give the user namespace of the process one user and one group of this process's one.

    `inside` is their id in there; below 0 it is the same as out here.
    """
    if os.geteuid() != 0:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{uid if inside < 0 else inside} {uid} 1")
    _write(f"/proc/{pid}/gid_map", f"{gid if inside < 0 else inside} {gid} 1")


def _user_namespace_of_root_files() -> int:
    """Return a namespace in which what belongs to root belongs to SANDBOX_ID."""
    made_r, made_w = os.pipe()
    end_r, end_w = os.pipe()

    def hold() -> None:
        os.close(end_w)
        _checked("unshare", _libc.unshare(_CLONE_NEWUSER))
        os.write(made_w, b".")
        os.read(end_r, 1)

    pid = _in_child(hold)
    os.close(made_w)
    try:
        if not os.read(made_r, 1):
            raise OSError("no user namespace can be made")
        _map_ids(pid, 0, SANDBOX_ID, SANDBOX_ID)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    finally:
        for fd in (made_r, end_r, end_w):
            os.close(fd)
        os.waitpid(pid, 0)


def _unshare(flags: int, uid: int, gid: int) -> None:
    """Enter new namespaces. A child that stays outside maps the ids: this process may not."""
    me = os.getpid()
    made_r, made_w = os.pipe()

    def map_ids() -> None:
        os.close(made_w)
        if os.read(made_r, 1):
            _map_ids(me, -1, uid, gid)

    pid = _in_child(map_ids)
    os.close(made_r)
    try:
        _checked("unshare", _libc.unshare(flags))
        os.write(made_w, b".")
    finally:
        os.close(made_w)
        _, status = os.waitpid(pid, 0)
    if status:
        raise OSError("the ids of the user namespace cannot be mapped")


def _become(uid: int, gid: int) -> None:
    if os.geteuid() == uid:
        return
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _make_place(path: str, *, is_directory: bool) -> str:
    """Create what a mount at the path needs below the new root, and return its place there."""
    place = _NEW_ROOT + path
    os.makedirs(place if is_directory else os.path.dirname(place), exist_ok=True)
    if not is_directory and not os.path.lexists(place):
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    return place


def _build_root(spec: dict[str, Any], workspace: int | None, uid: int, gid: int) -> None:
    """Mount everything that the program sees, except `/proc`, below the new root.

    All copies of mounts are made before the first mount is attached, by the runner's user: the
    program's user may not come to them, and the new root hides a directory.
    """
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    trees = []
    for path in spec["read_only"]:
        tree = _tree(path, _AT_RECURSIVE)
        _restrict(tree, "", _AT_EMPTY_PATH | _AT_RECURSIVE, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
        trees.append((path, os.path.isdir(path), tree))
    for name in _DEVICES:
        tree = _tree(f"/dev/{name}")
        _restrict(tree, "", _AT_EMPTY_PATH, _ATTR_NOSUID | _ATTR_NOEXEC)
        trees.append((f"/dev/{name}", False, tree))
    if workspace is None:
        workspace = _tree(spec["workspace"], _AT_RECURSIVE)
        _restrict(workspace, "", _AT_EMPTY_PATH, _ATTR_NOSUID | _ATTR_NODEV)
    _become(uid, gid)
    _tmpfs(_NEW_ROOT, "0755", 1024 * 1024)
    os.umask(0o022)
    for path in ("/tmp", "/dev/shm"):  # noqa: S108 - of the sandbox
        _tmpfs(_make_place(path, is_directory=True), "1777", spec["tmp_bytes"])
    os.makedirs(f"{_NEW_ROOT}/proc")
    for path, target in {**_DEVICE_LINKS, **spec["links"]}.items():
        os.symlink(target, _NEW_ROOT + path)
    for path, is_directory, tree in trees:
        _attach(tree, _make_place(path, is_directory=is_directory))
        os.close(tree)
    _attach(workspace, _make_place(spec["workspace"], is_directory=True))
    os.close(workspace)


def _enter_root(spec: dict[str, Any]) -> None:
    """Leave the old root behind. The new one, without its mounts, becomes read-only."""
    _mount("proc", f"{_NEW_ROOT}/proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(_NEW_ROOT)
    _checked("pivot_root", _libc.pivot_root(b".", b"."))
    _checked("umount", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
    _restrict(_AT_FDCWD, "/", 0, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    os.chdir(spec["workspace"])
    # A nested namespace would give capabilities back, and with them attack surface.
    _write("/proc/sys/user/max_user_namespaces", "0")


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))


def _drop_capabilities() -> None:
    number = 0
    while _prctl(_PR_CAPBSET_DROP, number) == 0:
        number += 1
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _checked("capset", _libc.capset(header, none))
    _checked("no_new_privs", _prctl(_PR_SET_NO_NEW_PRIVS, 1))
    _prctl(_PR_SET_DUMPABLE, 0)  # The program cannot look into process 1, whose user it shares.


def _silence() -> None:
    """Let the program alone hold the standard streams: their end says that it is gone."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)


def _execute(arguments: list[str]) -> None:
    # Python ignores these two signals, and the outer process the third one.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(arguments[0], arguments)  # noqa: S606 - the purpose of this file
    except OSError as error:
        os.write(2, f"sandbox: {arguments[0]}: {error.strerror}\n".encode())
        os._exit(_CANNOT_EXECUTE)


def _be_init(spec: dict[str, Any], outer: int) -> None:
    """Process 1: finish the sandbox, start the program, and end with it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([outer], [], [], 0)[0]:  # The outer process is dead already, so no signal comes.
        os._exit(1)
    _enter_root(spec)
    if not spec["network"]:
        _start_loopback()
    _checked("sethostname", _libc.sethostname(b"sandbox", 7))
    _limit(spec["limits"])
    _drop_capabilities()
    program = _in_child(lambda: _execute(spec["arguments"]))
    _silence()
    while True:
        pid, status = os.wait()  # Processes that lost their parents are this one's, too.
        if pid == program:
            os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(parent_pid: int, spec: dict[str, Any]) -> int:
    """Execute the program, and return its exit code when it and all its processes are gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It is for the program.
    if spec["cgroup"]:  # Before the namespaces, from which it cannot be seen.
        _write(f"{spec['cgroup']}/cgroup.procs", "0")
    os.nice(19)  # However many processes the program has, the runner gets a processor first.
    with suppress(OSError):  # Out of memory, the kernel ends the program, not the runner.
        _write("/proc/self/oom_score_adj", "1000")
    uid, gid, workspace = os.geteuid(), os.getegid(), None
    if uid == 0:
        uid = gid = SANDBOX_ID
        workspace, userns_fd = _tree(spec["workspace"]), _user_namespace_of_root_files()
        attributes = _ATTR_IDMAP | _ATTR_NOSUID | _ATTR_NODEV
        _restrict(workspace, "", _AT_EMPTY_PATH, attributes, userns_fd)
        os.close(userns_fd)
    flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWCGROUP
    _unshare(flags if spec["network"] else flags | _CLONE_NEWNET, uid, gid)
    _build_root(spec, workspace, uid, gid)
    # After the change of the user, which clears it.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        return 1
    outer_r, outer_w = os.pipe()

    def be_init() -> None:
        os.close(outer_w)
        _be_init(spec, outer_r)

    init = _in_child(be_init)
    os.close(outer_r)
    _silence()
    _, status = os.waitpid(init, 0)
    return _exit_code(status)


if __name__ == "__main__":
    try:
        code = main(int(sys.argv[1]), json.loads(sys.argv[2]))
    except OSError as error:
        _say(error)
        code = 1
    sys.exit(code)
