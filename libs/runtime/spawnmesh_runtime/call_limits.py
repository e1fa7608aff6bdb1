"""The limits of the calls of each tenant at this process: a second and at the same time, by class.

A process counts for itself. A tenant without limits of its own has those of the settings.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from opentelemetry.metrics import Counter, Meter, NoOpMeter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.token_bucket import TokenBucket

from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_runtime.rpc_class import RpcClass

MIB = 1024 * 1024
CALLS, BYTES, FIELDS = "calls_per_second", "bytes_per_second", "fields_per_second"

STREAM_MESSAGE_BYTES = 128 * 1024
"""The cost of a message of a stream is at least that of so many bytes.

To read one takes a tenth of a millisecond, however small it is. The largest default limit admits
4,096 a second, which take less than half of a core.
"""

FIELDS_PER_SECOND = 65_536
"""The fields of the requests of a tenant in a second, those of messages in them included.

To decode and check one takes some microseconds, and two bytes on the wire. So many take less than a
quarter of a core, in calls of every class together.
"""

# Of one tenant and one class. The one that was used least recently is dropped; its buckets are full
# after a second without calls, unless it owes bytes.
_MAX_ACCOUNTS = 10_000
# Waiting calls are few bytes each: their requests are not read.
_MAX_WAITING = 4096
# A tenant's clients, its harnesses and its runs take three shares at most, and leave as much for
# others.
_SHARES = 6
# Shorter than the deadlines of most calls, so that the refusal says why.
_WAIT_SECONDS = 8.0
_RETRY_SECONDS = 1.0
_LOG_SECONDS = 10.0

log = structlog.get_logger()


class ClassLimits(BaseModel):
    """The limits of a tenant for one class of RPCs at one process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls_per_second: int = Field(ge=1, le=1_000_000)
    burst_seconds: int = Field(default=1, ge=1, le=60)
    """After a pause, the calls of so many seconds may begin at once. No setting of a tenant."""
    bytes_per_second: int = Field(default=64 * MIB, ge=MIB, le=1024**4)
    concurrent_call_count: int = Field(ge=1, le=100_000)
    """The calls of the tenant's clients at the same time, and as many again of its runs.

    The process has six times as many places for the calls of all tenants.
    """


_DEFAULTS = {
    RpcClass.READ: ClassLimits(calls_per_second=1000, concurrent_call_count=32),
    RpcClass.WRITE: ClassLimits(calls_per_second=1000, concurrent_call_count=64),
    RpcClass.SPAWN: ClassLimits(calls_per_second=200, concurrent_call_count=16),
    RpcClass.TRANSFER: ClassLimits(
        calls_per_second=500, bytes_per_second=512 * MIB, concurrent_call_count=64
    ),
    RpcClass.SCAN: ClassLimits(calls_per_second=200, concurrent_call_count=8),
    RpcClass.GENERATE: ClassLimits(calls_per_second=200, concurrent_call_count=256),
    RpcClass.WATCH: ClassLimits(calls_per_second=1000, concurrent_call_count=4096),
}


class DefaultCallLimits(BaseModel):
    """The limits of a tenant that has none of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: ClassLimits = _DEFAULTS[RpcClass.READ]
    write: ClassLimits = _DEFAULTS[RpcClass.WRITE]
    spawn: ClassLimits = _DEFAULTS[RpcClass.SPAWN]
    transfer: ClassLimits = _DEFAULTS[RpcClass.TRANSFER]
    scan: ClassLimits = _DEFAULTS[RpcClass.SCAN]
    generate: ClassLimits = _DEFAULTS[RpcClass.GENERATE]
    watch: ClassLimits = _DEFAULTS[RpcClass.WATCH]

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Complete each class that is given with its defaults."""
        if not isinstance(given, dict):
            return given
        defaults = {one.lower(): limits.model_dump() for one, limits in _DEFAULTS.items()}
        return {
            name: {**defaults.get(name, {}), **limits} if isinstance(limits, dict) else limits
            for name, limits in given.items()
        }


OwnLimits = Mapping[RpcClass, Mapping[str, int]]
"""The limits of one tenant that differ from the defaults, by class and name of the field."""


class _Account:
    """The buckets of one tenant and one class."""

    __slots__ = ("bytes", "calls", "limits")

    def __init__(self, limits: ClassLimits, now: float) -> None:
        self.limits = limits
        self.calls = TokenBucket(limits.calls_per_second, now, limits.burst_seconds)
        self.bytes = TokenBucket(limits.bytes_per_second, now)


class CallLimits:
    """The limits of all tenants, and what they have used of them.

    All methods take constant time, and none of them waits.
    """

    def __init__(
        self,
        defaults: DefaultCallLimits | None = None,
        meter: Meter | None = None,
        *,
        monotonic: Monotonic = monotonic_seconds,
    ) -> None:
        chosen = defaults or DefaultCallLimits()
        self._defaults: dict[RpcClass, ClassLimits] = {one: getattr(chosen, one.lower()) for one in RpcClass}
        self._own: dict[str, dict[RpcClass, ClassLimits]] = {}
        self._accounts: OrderedDict[tuple[str, RpcClass], _Account] = OrderedDict()
        self._fields: OrderedDict[str, TokenBucket] = OrderedDict()
        self._monotonic = monotonic
        self._refusals = _Refusals(meter or NoOpMeter("spawnmesh"), monotonic)
        self._limiters = {one: self._limiter(one, one) for one in RpcClass}
        self.step_limiter = self._limiter(RpcClass.WRITE, "RUN")
        """The limiter of the steps of runs that harnesses make, by tenant. A tenant has as many
        places as for WRITE, and not the same ones: a plugin can hold a step for minutes.
        """

    def replace_all(self, limits: Mapping[str, OwnLimits]) -> None:
        """Let these tenants have limits of their own, and no others."""
        for tenant_id in self._own.keys() - limits.keys():
            del self._own[tenant_id]
        for tenant_id, own in limits.items():
            self.set_tenant(tenant_id, own)

    def set_tenant(self, tenant_id: str, own: OwnLimits) -> None:
        """Let the tenant have these limits, and the defaults for what they leave out."""
        if not own:
            self._own.pop(tenant_id, None)
            return
        limits = {one: self._defaults[one].model_copy(update=dict(values)) for one, values in own.items()}
        # The buckets belong to the object: equal limits must not fill them again.
        if limits != self._own.get(tenant_id):
            self._own[tenant_id] = limits

    def limits_of(self, tenant_id: str, rpc_class: RpcClass) -> ClassLimits:
        """Return the limits that hold for the tenant now, or for an account of it."""
        own = self._own.get(_tenant_of(tenant_id))
        return (own and own.get(rpc_class)) or self._defaults[rpc_class]

    def limiter(self, rpc_class: RpcClass) -> FairLimiter:
        """Return the limiter of concurrent calls of the class, by tenant."""
        return self._limiters[rpc_class]

    def admit(self, tenant_id: str, rpc_class: RpcClass) -> "RequestBytes":
        """Count a call of the tenant's clients and harnesses, and return the meter of its bytes.

        Raises RATE_LIMITED if the tenant has used up its calls, bytes or fields.
        """
        account, now = self._account(tenant_id, rpc_class), self._monotonic()
        if (seconds := self._bucket_of_fields(tenant_id).seconds_of_debt(now)) > 0:
            raise self._refusal(tenant_id, rpc_class, FIELDS, FIELDS_PER_SECOND, seconds)
        if (seconds := account.bytes.seconds_of_debt(now)) > 0:
            raise self._refusal(tenant_id, rpc_class, BYTES, account.limits.bytes_per_second, seconds)
        if (seconds := account.calls.take(now)) > 0:
            raise self._refusal(tenant_id, rpc_class, CALLS, account.limits.calls_per_second, seconds)
        return RequestBytes(self, tenant_id, rpc_class)

    def spend(self, tenant_id: str, rpc_class: RpcClass, size: int) -> None:
        """Count the bytes of a message that was read.

        Raises RATE_LIMITED, and does not count them, if calls that began earlier have used up the
        tenant's bytes meanwhile.
        """
        account, now = self._account(tenant_id, rpc_class), self._monotonic()
        if (seconds := account.bytes.seconds_of_debt(now)) > 0:
            raise self._refusal(tenant_id, rpc_class, BYTES, account.limits.bytes_per_second, seconds)
        account.bytes.spend(size, now)

    def spend_fields(self, tenant_id: str, count: int) -> None:
        """Count the fields of a message that was admitted."""
        self._bucket_of_fields(tenant_id).spend(count, self._monotonic())

    def spend_of_stream(self, tenant_id: str, rpc_class: RpcClass, size: int) -> None:
        """Count the bytes of a message of a stream, STREAM_MESSAGE_BYTES at least."""
        cost = max(size, STREAM_MESSAGE_BYTES)
        self._account(tenant_id, rpc_class).bytes.spend(cost, self._monotonic())

    def seconds_of_debt(self, tenant_id: str, rpc_class: RpcClass) -> float:
        """Return the seconds until the tenant may send more bytes and fields."""
        now = self._monotonic()
        return max(
            self._account(tenant_id, rpc_class).bytes.seconds_of_debt(now),
            self._bucket_of_fields(tenant_id).seconds_of_debt(now),
        )

    def report_no_place(self, tenant_id: str, rpc_class: RpcClass) -> None:
        """Count and log a call that got no place among the concurrent calls."""
        self._refusals.report(tenant_id, rpc_class, "concurrent_call_count")

    def _account(self, tenant_id: str, rpc_class: RpcClass) -> _Account:
        key, limits = (tenant_id, rpc_class), self.limits_of(tenant_id, rpc_class)
        account = self._accounts.get(key)
        if account is None or account.limits is not limits:
            account = self._accounts[key] = _Account(limits, self._monotonic())
            if len(self._accounts) > _MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(key)
        return account

    def _bucket_of_fields(self, tenant_id: str) -> TokenBucket:
        bucket = self._fields.get(tenant_id)
        if bucket is None:
            bucket = self._fields[tenant_id] = TokenBucket(FIELDS_PER_SECOND, self._monotonic())
            if len(self._fields) > _MAX_ACCOUNTS:
                self._fields.popitem(last=False)
        self._fields.move_to_end(tenant_id)
        return bucket

    def _refusal(
        self, tenant_id: str, rpc_class: RpcClass, limit: str, max_per_second: int, seconds: float
    ) -> MeshError:
        self._refusals.report(tenant_id, rpc_class, limit)
        unit = limit.partition("_")[0]
        return MeshError(
            Reason.RATE_LIMITED,
            f"the tenant may send this replica {max_per_second} {unit} a second in {rpc_class} calls;"
            f" call again in {seconds:.3f} s",
            retry_after_seconds=max(seconds, 0.001),
            facts={"rpc_class": rpc_class.value, "limit": limit, "max_per_second": max_per_second},
        )

    def _limiter(self, rpc_class: RpcClass, name: str) -> FairLimiter:
        places = _SHARES * self._defaults[rpc_class].concurrent_call_count
        policy = LimiterPolicy(
            f"{name} calls",
            f"too many {name} calls of the tenant wait for a place; call again later",
            places,
            # A call that waits for events keeps its place for minutes: do not wait for it.
            max_waiting=0 if rpc_class is RpcClass.WATCH else _MAX_WAITING,
            wait_seconds=_WAIT_SECONDS,
            retry_after_seconds=_RETRY_SECONDS,
        )
        return FairLimiter(policy, partial(self._share, rpc_class))

    def _share(self, rpc_class: RpcClass, key: str) -> int:
        return self.limits_of(key, rpc_class).concurrent_call_count


OF_RUNS, OF_HARNESSES = "/runs", "/harnesses"
"""The ends of the accounts of a tenant's runs and services, and of its harnesses. No tenant's id
has a slash. The account of its clients is the tenant's id.
"""


def _tenant_of(account: str) -> str:
    """Return the tenant of an account; "" for that of a token."""
    return account.partition("/")[0]


class RequestBytes:
    """Counts the bytes of the request of one call."""

    __slots__ = ("_limits", "_of")

    def __init__(self, limits: CallLimits, tenant_id: str, rpc_class: RpcClass) -> None:
        self._limits = limits
        self._of = tenant_id, rpc_class

    def count(self, data: bytes) -> None:
        """Count the one message of a call, before it is decoded. Raises RATE_LIMITED."""
        self._limits.spend(*self._of, len(data))

    def count_fields(self, count: int) -> None:
        """Count the fields of a message."""
        self._limits.spend_fields(self._of[0], count)

    async def count_of_stream(self, data: bytes) -> None:
        """Count a message of a stream once the tenant may send it. It is never refused."""
        while (seconds := self._limits.seconds_of_debt(*self._of)) > 0:  # noqa: ASYNC110 - time pays it
            await asyncio.sleep(seconds)
        self._limits.spend_of_stream(*self._of, len(data))


class _Refusals:
    """Counts refusals in a metric without ids, and logs them with the tenant, at times."""

    def __init__(self, meter: Meter, monotonic: Monotonic) -> None:
        self._monotonic = monotonic
        self._count: Counter = meter.create_counter(
            "spawnmesh.calls.limited",
            unit="{call}",
            description="Calls that were refused because of a tenant's limits, by class and limit.",
        )
        self._unlogged: OrderedDict[tuple[str, RpcClass, str], tuple[float, int]] = OrderedDict()

    def report(self, tenant_id: str, rpc_class: RpcClass, limit: str) -> None:
        self._count.add(1, {"spawnmesh.rpc.class": rpc_class.value, "spawnmesh.limit": limit})
        key, now = (tenant_id, rpc_class, limit), self._monotonic()
        since, count = self._unlogged.get(key, (0.0, 0))
        if count and now - since < _LOG_SECONDS:
            self._unlogged[key] = since, count + 1
            return
        # The first of a tenant at once, then the number since the last event.
        log.warning(
            "calls_limited",
            tenant=_tenant_of(tenant_id),
            account=tenant_id,
            rpc_class=rpc_class,
            limit=limit,
            count=count or 1,
        )
        self._unlogged[key] = now, 1
        self._unlogged.move_to_end(key)
        if len(self._unlogged) > _MAX_ACCOUNTS:
            self._unlogged.popitem(last=False)
