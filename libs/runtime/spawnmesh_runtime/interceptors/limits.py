"""Limit the calls of each tenant before their requests are read.

- The calls of clients and harnesses are counted, and refused above the rates of the tenant. Each of
  the two has the rates for itself.
- The calls of both, and those of runs and services on behalf of the tenant, wait for a place among
  its concurrent calls. Each of the three has places of its own: a flood of a tenant's clients slows
  neither its runs nor its harnesses.
- The mesh's own callers without a tenant, and its operators, have no limits. At a step of a run,
  harnesses have the rates of WRITE and places of their own. Other callers need none there, and
  neither does the heartbeat: it must not wait for a draft, which a gate may hold for minutes.
"""

from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.call_limits import OF_HARNESSES, OF_RUNS, CallLimits
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.interceptors.auth import is_revoked
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens
from spawnmesh_runtime.rpc_class import RpcClass


def _account_of(caller: Caller | None) -> str:
    """Return whose rates a call counts for: the tenant's clients or its harnesses; "" for callers
    without rates. A harness of several tenants counts for the first of them.
    """
    if caller is None or caller.is_of_the_mesh or caller.kind is CallerKind.ADMIN:
        return ""
    if caller.is_harness:
        return caller.tenant_id + OF_HARNESSES
    if caller.tenants:
        return min(caller.tenants) + OF_HARNESSES
    return caller.tenant_id or caller.revocation_key


def rated_calls(
    inner: Step, rpc_class: RpcClass, limits: CallLimits, policy: CallPolicy, revoked: RevokedTokens
) -> Step:
    """Count each call of a client or a harness, as soon as its token is verified.

    A call above the rates goes on unobserved until `limited_calls` refuses it: a flood must not
    become one of spans. Revoked tokens do not count: the holder of a stolen one must not use up
    what the tenant's own clients may call.
    """

    async def step(call: Call) -> object:
        account = _account_of(call.caller)
        if call.caller is not None and account and not is_revoked(call.caller, policy, revoked):
            try:
                call.request_bytes = limits.admit(account, rpc_class)
            except MeshError as error:
                call.rate_refusal, call.is_observed = error, False
        return await inner(call)

    return step


def limited_calls(inner: Step, policy: CallPolicy, limits: CallLimits) -> Step:
    """Refuse calls above the rates, and hold a place for each other call of a tenant if the RPC has
    a class, and for each one of a harness if it is a limited step of a run.
    """
    rpc_class = policy.rpc_class
    places = limits.limiter(rpc_class) if rpc_class else limits.step_limiter if policy.limited_step else None

    async def step(call: Call) -> object:
        if call.rate_refusal is not None:
            refusal, call.rate_refusal = call.rate_refusal, None
            raise refusal
        caller = call.caller
        if caller is None or places is None:
            return await inner(call)
        key = account = _account_of(caller)
        if not account and caller.tenant_id and rpc_class:
            account = caller.tenant_id
            key = account + OF_RUNS
        if not key:
            return await inner(call)
        is_admitted = False
        try:
            async with places.hold(key):
                is_admitted = True
                return await inner(call)
        except MeshError as error:
            if not is_admitted and refused_with(error, Reason.POOL_EXHAUSTED):
                limits.report_no_place(account, rpc_class or RpcClass.WRITE)
            raise

    return step
