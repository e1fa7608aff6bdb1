"""Attacks of an MCP server, as Python code that `mcp_attacker.py` executes.

Each assigns its outcome to `answer`.
"""

from pathlib import Path

MIB = 1024 * 1024

NAMESPACE = "import os; answer = os.readlink('/proc/self/ns/pid')"
USER = "import os; answer = [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]"
CAPABILITIES = """
wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
answer = []
for pid in ("self", "1"):
    lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    answer += [int(lines[name], 16) for name in wanted]
"""
ENVIRONMENTS = """
import glob, json
names = set()
for file in glob.glob("/proc/*/environ"):
    try:
        names.update(entry.partition("=")[0] for entry in open(file).read().split("\\0") if entry)
    except OSError:
        pass
answer = json.dumps(sorted(names))
"""
PROCESSES = "import os; answer = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
MEMORY = """
import glob, os
answer = []
for file in glob.glob("/proc/*/mem"):
    if file.split("/")[2] not in ("self", "thread-self", str(os.getpid())):
        try:
            open(file, "rb")
            answer.append(file)
        except OSError:
            pass
"""
NESTED = """
import ctypes, os
pid = os.fork()
if pid == 0:
    os._exit(0 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 1)
answer = "refused" if os.waitpid(pid, 0)[1] else "made"
"""
FORK_BOMB = """
import os, time
answer = 0
try:
    for _ in range(400):
        if os.fork() == 0:
            time.sleep(600)
        answer += 1
except BlockingIOError:
    pass
"""
OPEN_FILES = """
import os
answer, opened = 0, []
try:
    for _ in range(5000):
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
answer = len(opened)
for fd in opened:
    os.close(fd)
"""
MANY_TEMPORARY_BYTES = """
answer = 0
with open("/tmp/fill", "wb") as file:
    for _ in range(4):
        answer += file.write(bytes(1024 * 1024))
for number in range(100):
    open(f"/tmp/fill{number}", "wb").write(bytes(1024 * 1024))
"""
ESCAPED_CHILD = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
answer = "started"
"""

# Those below go on until the server is ended. Each uses 256 MiB of memory or more, or 64 MiB of a disk.
# The pages of the mapping stay, although no page table has them.
SHARED_MAPPING = f"""
import mmap, time
held = mmap.mmap(-1, {256 * MIB})
for _ in range(256):
    held.write(bytes({MIB}))
held.madvise(mmap.MADV_DONTNEED)
time.sleep(60)
answer = "kept"
"""
MEMFDS = f"""
import os, time
held = [os.memfd_create("held") for _ in range(64)]
for fd in held:
    for _ in range(4):
        os.write(fd, bytes({MIB}))
time.sleep(60)
answer = "kept"
"""
MEMORY_OF_CHILDREN = f"""
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b"x") * {32 * MIB}
        time.sleep(60)
        os._exit(0)
time.sleep(60)
answer = "kept"
"""
DELETED_FILES = f"""
import os, time
held = []
for number in range(16):
    held.append(open(f"deleted{{number}}", "wb"))
    os.unlink(f"deleted{{number}}")
    held[-1].write(bytes({4 * MIB}))
time.sleep(60)
answer = "kept"
"""
MANY_FILES = """
import os, time
for number in range(16384):
    if number % 1024 == 0:
        os.mkdir(f"files{number // 1024}")
    os.close(os.open(f"files{number // 1024}/{number}", os.O_CREAT | os.O_WRONLY))
time.sleep(60)
answer = "kept"
"""


def reading(path: Path | str) -> str:
    return f"answer = open({str(path)!r}, 'rb').read()"


def writing(path: Path | str) -> str:
    return f"answer = open({str(path)!r}, 'ab').write(b'overwritten')"


def connecting(family: str, address: object) -> str:
    return (
        f"import socket; one = socket.socket(socket.{family}); one.settimeout(5);"
        f" one.connect({address!r}); answer = 'connected'"
    )
