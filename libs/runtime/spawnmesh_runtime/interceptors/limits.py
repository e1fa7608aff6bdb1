"""Limit the calls of each tenant before their requests are read.

- The calls of clients are counted, and refused above the rates of the tenant.
- The calls of clients, and those of runs and services on behalf of the tenant, wait for a place
  among its concurrent calls. Clients and the others have places of their own: a flood of a tenant's
  clients does not slow its runs.
- Callers without a tenant, such as operators of the mesh, have no limits.
"""

from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.call_limits import OF_RUNS, CallLimits
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.revoked_tokens import RevokedTokens
from spawnmesh_runtime.rpc_class import RpcClass


def rated_calls(inner: Step, rpc_class: RpcClass, limits: CallLimits, revoked: RevokedTokens) -> Step:
    """Count each call of a client, as soon as its token is verified.

    A call above the rates goes on without a span until `limited_calls` refuses it: a flood must not
    become one of spans. Revoked tokens do not count: the holder of a stolen one must not use up
    what the tenant's own clients may call.
    """

    async def step(call: Call) -> object:
        caller = call.caller
        if caller is None or caller.kind is not CallerKind.CLIENT or not caller.tenant_id:
            return await inner(call)
        if caller.revocation_key not in revoked:
            try:
                call.request_bytes = limits.admit(caller.tenant_id, rpc_class)
            except MeshError as error:
                call.rate_refusal = error
        return await inner(call)

    return step


def limited_calls(inner: Step, rpc_class: RpcClass, limits: CallLimits) -> Step:
    """Refuse calls above the rates, and hold a place for each other call of a tenant."""
    places = limits.limiter(rpc_class)

    async def step(call: Call) -> object:
        if call.rate_refusal is not None:
            refusal, call.rate_refusal = call.rate_refusal, None
            raise refusal
        caller = call.caller
        if caller is None or not caller.tenant_id:
            return await inner(call)
        key = tenant_id = caller.tenant_id
        if caller.kind is not CallerKind.CLIENT:
            key += OF_RUNS
        is_admitted = False
        try:
            async with places.hold(key):
                is_admitted = True
                return await inner(call)
        except MeshError as error:
            if not is_admitted and refused_with(error, Reason.POOL_EXHAUSTED):
                limits.report_no_place(tenant_id, rpc_class)
            raise

    return step
