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
from spawnmesh_runtime.rpc_class import RpcClass


def limited_calls(inner: Step, rpc_class: RpcClass, limits: CallLimits) -> Step:
    """Admit each call by the limits of its tenant, and hold a place for it until it ends."""
    places = limits.limiter(rpc_class)

    async def step(call: Call) -> object:
        caller = call.caller
        if caller is None or not caller.tenant_id:
            return await inner(call)
        key = tenant_id = caller.tenant_id
        if caller.kind is CallerKind.CLIENT:
            call.request_bytes = limits.admit(tenant_id, rpc_class)
        else:
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
