"""Sign the page tokens of an RPC that lists, with a key that all replicas of the service have."""

from spawnmesh_core.page_tokens import page_key

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.tokens import TokenMinter


def page_key_of(minter: TokenMinter) -> bytes:
    """Return the key of the page tokens of a service with this signing key."""
    return minter.derived_key("page tokens")


def signed_pages(inner: Step, process: Process) -> Step:
    """Serve each call with the key of page tokens. Raises SystemExit with one line if the process
    has no signing key to derive it from.
    """
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to sign page tokens")
    key = page_key_of(process.minter)

    async def step(call: Call) -> object:
        with page_key(key):
            return await inner(call)

    return step
