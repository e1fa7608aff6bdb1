"""A process that replaces directories of a workspace by symlinks, until it is killed."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def swap_once(place: Path, aside: Path, outside: Path) -> None:
    with suppress(OSError):
        place.rename(aside)
    with suppress(OSError):
        place.symlink_to(outside)
    with suppress(OSError):
        place.unlink()
    with suppress(OSError):
        aside.rename(place)


def swap_for_ever(workspace: Path, outside: Path) -> None:
    home = workspace / ".spawnmesh" / "attachments"
    aside = workspace / "aside"
    print("swapping", flush=True)
    while True:
        for place in (workspace / ".spawnmesh", home, home / "set_1", workspace / "tools"):
            swap_once(place, aside, outside)
        with suppress(OSError):
            for name in os.listdir(home):
                swap_once(home / name, aside, outside)


if __name__ == "__main__":
    swap_for_ever(Path(sys.argv[1]), Path(sys.argv[2]))
