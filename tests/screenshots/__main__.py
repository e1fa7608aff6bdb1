"""`python -m tests.screenshots [--only NAME …] [--stay]` starts a mesh with its console, fills it,
and writes a picture of every page at two widths, in light and in dark colours.

`--only` chooses pictures by their names. With `--stay`, the mesh runs on afterward, and each line
that is entered takes the pictures again: a word chooses those whose names begin with it.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from spawnmesh_client.client import connect
from spawnmesh_devstack import members
from spawnmesh_devstack.console import SIGN_IN_NAME
from spawnmesh_devstack.models import scripted_config, scripted_environment
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.process import run_process

from tests.screenshots.camera import take
from tests.screenshots.gallery import write_gallery
from tests.screenshots.outside import open_outside
from tests.screenshots.pictures import FOLDER, PICTURES, Picture, all_files
from tests.screenshots.story import LARGE, SMALL, STANDARD, TENANT, tell
from tests.support.console.browsers import missing_browser
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import ConsoleTenant

_KEY = "PICTURES_KEY"
_PRICES = {LARGE: (2_500_000, 10_000_000), SMALL: (400_000, 1_600_000), STANDARD: (1_200_000, 4_800_000)}
_WINDOWS = {LARGE: 400_000, SMALL: 128_000, STANDARD: 200_000}


@asynccontextmanager
async def open_mesh(home: Path, outside: str) -> AsyncIterator[Stack]:
    """Start a mesh with the models of the pictures beside the scripted ones, and its console."""
    (port,) = free_ports(1)
    config = scripted_config(port)
    config["primary"], config["aliases"] = LARGE, {"fast": SMALL}
    for name in (LARGE, SMALL, STANDARD):
        provider = {"kind": "openai_compatible", "base_url": f"{outside}/v1", "credentials": [f"env:{_KEY}"]}
        config["providers"][name.partition("/")[0]] = provider
        prices = zip(("input", "output"), _PRICES[name], strict=True)
        config["models"][name] = {
            "context_window": _WINDOWS[name],
            "max_output": 16_384,
            "vision": name == LARGE,
            **{f"{sort}_micros_per_million_tokens": price for sort, price in prices},
        }
    environment = {**scripted_environment(), _KEY: "any"}
    async with open_stack(
        home / "mesh", _say, runner_count=2, router_config=config, environment=environment
    ) as stack:
        await stack.start(members.scripted_model_member(port))
        await stack.start_console()
        yield stack


async def picture(names: Sequence[str], *, stays: bool) -> None:
    """Start, fill and picture a mesh, and stop it."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-pictures-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        async with open_outside() as outside, open_mesh(home, outside) as stack:
            assert stack.console is not None
            console = RunningConsole(
                stack,
                "console",
                stack.console,
                stack.data_dir / SIGN_IN_NAME,
                stack.keys / "console-cookie.key",
            )
            async with connect(targets=stack.targets, token=stack.client_token(TENANT)) as mesh:
                tenant = ConsoleTenant(console, TENANT, mesh)
                _say("filling the tenant")
                story = await tell(tenant, home, outside)
                chosen = [one for one in PICTURES if not names or one.name in names]
                while chosen:
                    _say(f"taking {len(chosen)} pictures")
                    files = await take(console, chosen, story, tenant.token(), stack.admin_token())
                    _say(
                        f"{len(files)} files, {sum(file.stat().st_size for file in files):,} bytes in {FOLDER}"
                    )
                    chosen = await _next_pictures() if stays else []


async def _next_pictures() -> list[Picture]:
    line = await asyncio.to_thread(sys.stdin.readline)
    return [one for one in PICTURES if one.name.startswith(line.strip())] if line else []


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Take the pictures. Files of pages that are no longer there are deleted."""
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=(), choices=[one.name for one in PICTURES], metavar="NAME"
    )
    parser.add_argument(
        "--stay", action="store_true", help="Take pictures again for each line of standard input."
    )
    arguments = parser.parse_args()
    if problem := missing_browser():
        sys.exit(problem)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in {*FOLDER.iterdir()} - {*all_files()}:
        old.unlink()
    write_gallery()
    run_process(picture(arguments.only, stays=arguments.stay))


if __name__ == "__main__":
    main()
