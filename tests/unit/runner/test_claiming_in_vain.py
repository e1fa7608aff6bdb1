"""A runner that cannot claim says why, and says it again when the reason is another one, or a minute has gone by."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner import claim
from spawnmesh_runner.settings import RunnerSettings


class Refusing:
    """Refuses one claim after the other for these reasons, each at its second, and then tells that it is done."""

    def __init__(self, refusals: list[tuple[float, Reason]]) -> None:
        self._refusals: Iterator[tuple[float, Reason]] = iter(refusals)
        self.seconds = 0.0
        self.done = asyncio.Event()

    async def unary(self, *_: Any, **__: Any) -> Any:
        refusal = next(self._refusals, None)
        if refusal is None:
            self.done.set()
            await asyncio.Event().wait()
            raise AssertionError
        self.seconds, reason = refusal
        raise MeshError(reason, "no")


@pytest.mark.parametrize(
    ("refusals", "told"),
    [
        ([(0.0, Reason.DEPENDENCY_UNAVAILABLE)] * 3, ["DEPENDENCY_UNAVAILABLE"]),
        (
            [(0.0, Reason.DEPENDENCY_UNAVAILABLE), (2.0, Reason.TOKEN_INVALID), (4.0, Reason.TOKEN_INVALID)],
            ["DEPENDENCY_UNAVAILABLE", "TOKEN_INVALID"],
        ),
        ([(0.0, Reason.TOKEN_INVALID), (59.0, Reason.TOKEN_INVALID), (60.0, Reason.TOKEN_INVALID)], ["TOKEN_INVALID"] * 2),
    ],
    ids=["the same", "another reason", "a minute later"],
)  # fmt: skip
async def test_why_no_runs_are_claimed(
    monkeypatch: pytest.MonkeyPatch, refusals: list[tuple[float, Reason]], told: list[str]
) -> None:
    session = Refusing(refusals)
    monkeypatch.setattr(claim, "monotonic_seconds", lambda: session.seconds)
    monkeypatch.setattr(claim, "backoff_seconds", lambda *_, **__: 0.0)
    mesh: Any = SimpleNamespace(session=session, runs=SimpleNamespace(ClaimRuns=None))
    minter: Any = SimpleNamespace(runner_token=lambda: "token")
    stop = asyncio.Event()
    warnings: list[str] = []
    log = SimpleNamespace(warning=lambda _event, *, reason: warnings.append(reason), info=lambda *_, **__: None)
    monkeypatch.setattr(claim, "log", log)
    claiming = asyncio.create_task(
        claim.claim_until(
            stop,
            mesh,
            minter,
            RunnerSettings.model_construct(max_runs=1, runner_id="r", claim_wait_seconds=1.0),
            carry,
        )
    )
    async with asyncio.timeout(5):
        await session.done.wait()
    stop.set()
    await claiming
    assert warnings == told


async def carry(_: Any) -> None:
    raise AssertionError("there is nothing to carry")
