"""`render_server.py SCRIPT`: run the script once for each line of standard input.

A line is a JSON list of arguments. The answer is a JSON line with exit code, output and errors. The
library of Helm is loaded once: it takes longer to load than to render. The server ends with its
standard input.
"""

import json
import os
import runpy
import sys
import traceback
from tempfile import TemporaryFile


def main() -> None:
    """Serve until standard input ends."""
    script = sys.argv[1]
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            print(json.dumps(run(script, json.loads(line))), file=answers, flush=True)


def run(script: str, arguments: list[str]) -> tuple[int, str, str]:
    """Return exit code, output and errors, as for a process of its own."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        # The descriptors too: the library has a runtime that does not write through Python.
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.argv[:] = [script, *arguments]
        code = exit_code(script)
        for stream, file in ((sys.stdout, output), (sys.stderr, errors)):
            stream.flush()
            file.seek(0)
        return code, output.read(), errors.read()


def exit_code(script: str) -> int:
    """Run the script and return its exit code. Print what the interpreter prints at its end."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    except Exception:  # noqa: BLE001 - the traceback is the answer
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
