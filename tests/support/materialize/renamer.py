"""A process that renames directories inside a workspace's sets, until it is killed."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def rename_for_ever(home: Path) -> None:
    print("renaming", flush=True)
    while True:
        with suppress(OSError):
            for below in os.listdir(home):
                for name in os.listdir(home / below):
                    with suppress(OSError):
                        (home / below / name).rename(home / below / f"{name[-8:]}~")


if __name__ == "__main__":
    rename_for_ever(Path(sys.argv[1]))
