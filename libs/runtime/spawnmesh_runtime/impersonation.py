"""Choose the token of outgoing calls if it is not the service token for the tenant of
the caller.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from spawnmesh_runtime.caller import caller_or_none
from spawnmesh_runtime.tokens import TokenMinter


@dataclass(frozen=True, slots=True)
class _Tenant:
    tenant_id: str
    plugin: str = ""


@dataclass(slots=True)
class ReplaceableToken:
    """A token that may be replaced by a newer one.

    The newer token applies to all calls of the block that begin later, in whichever task.
    """

    token: str


_credential: ContextVar[_Tenant | ReplaceableToken | None] = ContextVar(
    "spawnmesh_outgoing_credential", default=None
)


@contextmanager
def impersonate(tenant_id: str, *, plugin: str = "") -> Iterator[None]:
    """Send this process's own service token for the tenant with the outgoing calls of the block.

    The innermost block decides. `plugin` is the endpoint of a plugin: a token for it opens nothing
    else.
    """
    reset = _credential.set(_Tenant(tenant_id, plugin))
    try:
        yield
    finally:
        _credential.reset(reset)


@contextmanager
def use_token(token: str) -> Iterator[ReplaceableToken]:
    """Send this token, such as the token of a run, with the outgoing calls of the block.

    The innermost block decides. Set `token` of the yielded object to replace the token.
    """
    held = ReplaceableToken(token)
    reset = _credential.set(held)
    try:
        yield held
    finally:
        _credential.reset(reset)


def outgoing_token(minter: TokenMinter | None) -> str:
    """Return the token for an outgoing call.

    The innermost `impersonate` or `use_token` block decides; without a block, the token is a
    service token for the tenant of the caller. Raises RuntimeError if neither a block nor a caller
    names a tenant, and if a service token is needed and this process has no signing key.
    """
    credential = _credential.get()
    if isinstance(credential, ReplaceableToken):
        return credential.token
    if credential is None:
        caller = caller_or_none()
        credential = _Tenant(caller.tenant_id if caller is not None else "")
    if not credential.tenant_id:
        raise RuntimeError("an outgoing call needs a tenant: make it inside impersonate or use_token")
    if minter is None:
        raise RuntimeError("an outgoing call with a service token needs signing_key_file")
    return minter.service_token(credential.tenant_id, plugin=credential.plugin)
