"""`python -m tests.fuzz names|base64 [--seconds 60] [--seed 1]`: ends with exit code 1 and the input at the first that breaks a rule."""

import argparse
import random
import secrets
import sys
from time import monotonic

from tests.fuzz.mutate import mutations
from tests.fuzz.targets import TARGETS


def main() -> None:
    """Runs one target until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    print(f"{given.target}: seed {given.seed}", flush=True)
    target, ends = TARGETS[given.target], monotonic() + given.seconds
    count = accepted = 0
    for text, feedback in mutations(given.target, random.Random(given.seed)):
        if monotonic() > ends:
            break
        count += 1
        try:
            if target(text):
                accepted += 1
                feedback.accepted(text)
        except Exception as error:  # noqa: BLE001 - whatever breaks is what is looked for
            sys.exit(f"input {count}, {text!r}: {type(error).__name__} {error}")
    print(f"{given.target}: {count} inputs, {accepted} accepted, none broke a rule")


if __name__ == "__main__":
    main()
