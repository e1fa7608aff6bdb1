"""In whose name outgoing calls are made, where that is not the tenant of the call being served."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from spawnmesh_runtime.caller import caller_if_any
from spawnmesh_runtime.tokens import TokenMinter


@dataclass(frozen=True, slots=True)
class _Tenant:
    tenant_id: str
    plugin: str = ""


@dataclass(slots=True)
class HeldToken:
    """A token that a newer one may take the place of, for all calls that begin from then on, whichever task of the block makes them."""

    token: str


_acting: ContextVar[_Tenant | HeldToken | None] = ContextVar("spawnmesh_acting", default=None)


@contextmanager
def acting_for(tenant_id: str, *, plugin: str = "") -> Iterator[None]:
    """Outgoing calls in the block carry this process's own service token for the tenant. The innermost block decides.

    Calls of a plugin name the endpoint that it is registered with: their token opens nothing else.
    """
    reset = _acting.set(_Tenant(tenant_id, plugin))
    try:
        yield
    finally:
        _acting.reset(reset)


@contextmanager
def acting_with_token(token: str) -> Iterator[HeldToken]:
    """Outgoing calls in the block carry this token, such as a run's, or what is put in its place. The innermost block decides."""
    held = HeldToken(token)
    reset = _acting.set(held)
    try:
        yield held
    finally:
        _acting.reset(reset)


def outgoing_token(minter: TokenMinter | None) -> str:
    """The token for an outgoing call: that of the innermost `acting_…` block, else a service token for the caller's tenant.

    Raises RuntimeError where neither a block nor a caller says which tenant, and where a service token is needed and this process has no key.
    """
    acting = _acting.get()
    if isinstance(acting, HeldToken):
        return acting.token
    if acting is None:
        caller = caller_if_any()
        acting = _Tenant(caller.tenant_id if caller is not None else "")
    if not acting.tenant_id:
        raise RuntimeError("an outgoing call needs a tenant: make it inside acting_for or acting_with_token")
    if minter is None:
        raise RuntimeError("an outgoing call in the name of this service needs signing_key_file")
    return minter.service_token(acting.tenant_id, plugin=acting.plugin)
