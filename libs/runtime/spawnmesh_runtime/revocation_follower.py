"""Follow the revocations of the session service, so that this process refuses revoked tokens.

While the session service cannot be reached, the process knows the revocations from before and no
newer ones. It goes on serving: the tokens of runs live for minutes only. A process that starts
meanwhile knows none, so it waits before it serves, for a limited time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from spawnmesh.session.v1 import token_service_pb2 as pb
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceStub
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import error_label

from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.revoked_tokens import RevokedTokens, revocation_key
from spawnmesh_runtime.tokens import TokenMinter

AGE = "spawnmesh.revocations.age"
"""The metric of the time since this process last knew all revocations."""

# A stream ends before, and the token of the call, too.
_STREAM_TIMEOUT_SECONDS = 290.0
# The service sends a message every three seconds.
_QUIET_SECONDS = 4.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
_REPORT_AFTER_SECONDS = 15.0

log = structlog.get_logger()


class RevocationFollower:
    """Reads the stream of the session service again and again, each time from where it ended."""

    def __init__(
        self,
        peer: Peer,
        minter: TokenMinter,
        revoked: RevokedTokens,
        *,
        monotonic: Monotonic = monotonic_seconds,
    ) -> None:
        self._stub = TokenServiceStub(peer.channel)
        self._peer = peer
        self._minter = minter
        self._revoked = revoked
        self._monotonic = monotonic
        self._change = 0
        self._current_at = monotonic()
        self._is_reported = False
        self.known = asyncio.Event()
        """Set once all revocations are known."""

    @property
    def age_seconds(self) -> float:
        """The time since this process last knew all revocations, or since its start."""
        return self._monotonic() - self._current_at

    async def follow_forever(self) -> None:
        """Follow the revocations. Errors are retried and, after a while, logged."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            before = self._current_at
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - the next try may succeed, whatever the error
                raise_if_cancelled()
                self._report(error)
            has_progressed = self._current_at > before
            pause = _FIRST_PAUSE_SECONDS if has_progressed else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        request = pb.WatchRevokedTokensRequest(after_change=self._change)
        with use_token(self._minter.mesh_token()):
            messages = self._peer.stream(
                self._stub.WatchRevokedTokens,
                request,
                timeout_seconds=_STREAM_TIMEOUT_SECONDS,
                quiet_seconds=_QUIET_SECONDS,
            )
            async for message in messages:
                self._take(message)

    def _take(self, message: pb.WatchRevokedTokensResponse) -> None:
        for token in message.tokens:
            key = revocation_key(token.tenant_id, token.token_id)
            self._revoked.add(key, token.expire_time.ToNanoseconds() / 1e9, is_run=token.is_run)
        if not message.change:
            return  # More pages follow.
        self._change = message.change
        if self._is_reported:
            log.info("revocations_followed", after_seconds=round(self.age_seconds, 1))
            self._is_reported = False
        self._current_at = self._monotonic()
        self.known.set()

    def _report(self, error: Exception) -> None:
        if self._is_reported or self.age_seconds < _REPORT_AFTER_SECONDS:
            return
        self._is_reported = True
        log.warning("revocations_stale", age_seconds=round(self.age_seconds, 1), error=error_label(error))


@asynccontextmanager
async def following_revocations(process: Process, session_target: str | None) -> AsyncIterator[None]:
    """Refuse revoked tokens in this process during the block.

    The block begins when all revocations are known, or after `revocations_wait_seconds`. Raises
    SystemExit with one line if the process has no key to call it with. Without a target, this
    process refuses no token as revoked, and logs it.
    """
    if not session_target:
        log.warning("revocations_not_followed", missing="session_target")
        yield
        return
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to follow revocations")
    async with open_peer(process, "session", session_target, is_dependency=False) as peer:
        follower = RevocationFollower(peer, process.minter, process.revoked)
        _measure(process.metrics.meter, follower, process.revoked)
        task = asyncio.create_task(follower.follow_forever(), name="follow revocations")
        try:
            await _wait_until_known(follower, process.settings.revocations_wait_seconds)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _wait_until_known(follower: RevocationFollower, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await follower.known.wait()
    except TimeoutError:
        log.warning("revocations_not_read", waited_seconds=seconds)


def _measure(meter: Meter, follower: RevocationFollower, revoked: RevokedTokens) -> None:
    def age(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(follower.age_seconds)

    def count(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(len(revoked))

    meter.create_observable_gauge(
        AGE, callbacks=[age], unit="s", description="Time since the process last knew all revocations."
    )
    meter.create_observable_gauge(
        "spawnmesh.revocations.count",
        callbacks=[count],
        unit="{token}",
        description="Revoked tokens and ended runs that the process refuses.",
    )
