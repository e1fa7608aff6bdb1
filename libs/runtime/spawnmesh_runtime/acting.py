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


@dataclass(frozen=True, slots=True)
class _Token:
    token: str


_acting: ContextVar[_Tenant | _Token | None] = ContextVar("spawnmesh_acting", default=None)


@contextmanager
def acting_for(tenant_id: str) -> Iterator[None]:
    """Outgoing calls in the block carry this process's own service token for the tenant. The innermost block decides."""
    reset = _acting.set(_Tenant(tenant_id))
    try:
        yield
    finally:
        _acting.reset(reset)


@contextmanager
def acting_with_token(token: str) -> Iterator[None]:
    """Outgoing calls in the block carry this token, such as a run's. The innermost block decides."""
    reset = _acting.set(_Token(token))
    try:
        yield
    finally:
        _acting.reset(reset)


def outgoing_token(minter: TokenMinter | None) -> str:
    """The token for an outgoing call: that of the innermost `acting_…` block, else a service token for the caller's tenant.

    Raises RuntimeError where neither a block nor a caller says which tenant, and where a service token is needed and this process has no key.
    """
    acting = _acting.get()
    if isinstance(acting, _Token):
        return acting.token
    caller = caller_if_any()
    tenant_id = acting.tenant_id if acting is not None else caller.tenant_id if caller is not None else ""
    if not tenant_id:
        raise RuntimeError("an outgoing call needs a tenant: make it inside acting_for or acting_with_token")
    if minter is None:
        raise RuntimeError("an outgoing call in the name of this service needs signing_key_file")
    return minter.service_token(tenant_id)
