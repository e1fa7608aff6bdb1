"""Every program that a runner starts during its calls begins to run."""

import asyncio
import sys
from pathlib import Path

RUNNER = """
import spawnmesh_runner  # Before all else, as `python -m spawnmesh_runner` does.

import asyncio
import sys

import grpc
import uvloop
from grpc import aio

async def echo(request, context):
    return request

async def call(channel):
    echo = channel.unary_unary("/test.Echo/Echo")
    while True:
        await echo(b"x")

async def start():
    return await (await asyncio.create_subprocess_exec("true")).wait()

async def main():
    server = aio.server()
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = [aio.insecure_channel(f"127.0.0.1:{port}") for _ in range(2)]
    calls = [asyncio.create_task(call(channel)) for channel in channels for _ in range(4)]
    codes = []
    for _ in range(100):
        codes += await asyncio.gather(start(), start())
    print(*[code for code in codes if code])
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(None)

uvloop.run(main())
"""


async def test_no_child_process_is_killed_between_fork_and_exec(tmp_path: Path) -> None:
    script = tmp_path / "runner.py"
    script.write_text(RUNNER)
    runner = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    printed, _ = await runner.communicate()
    assert (runner.returncode, printed.decode().strip()) == (0, "")
