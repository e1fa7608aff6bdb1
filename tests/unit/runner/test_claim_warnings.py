"""A runner that cannot claim warns once for each reason, and again after a minute."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.loop import claim_runs as claim
from spawnmesh_runner.settings import RunnerSettings


class Refusing:
    """Refuse one claim after another with these reasons, each at its second, and then set
    `done`.
    """

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
    ("refusals", "expected"),
    [
        ([(0.0, Reason.DEPENDENCY_UNAVAILABLE)] * 3, ["DEPENDENCY_UNAVAILABLE"]),
        (
            [(0.0, Reason.DEPENDENCY_UNAVAILABLE), (2.0, Reason.TOKEN_INVALID), (4.0, Reason.TOKEN_INVALID)],
            ["DEPENDENCY_UNAVAILABLE", "TOKEN_INVALID"],
        ),
        ([(seconds, Reason.TOKEN_INVALID) for seconds in (0.0, 59.0, 60.0)], ["TOKEN_INVALID"] * 2),
    ],
    ids=["the same", "another reason", "a minute later"],
)
async def test_a_failed_claim_warns_once_per_reason_and_minute(
    monkeypatch: pytest.MonkeyPatch, refusals: list[tuple[float, Reason]], expected: list[str]
) -> None:
    session = Refusing(refusals)
    monkeypatch.setattr(claim, "monotonic_seconds", lambda: session.seconds)
    monkeypatch.setattr(claim, "backoff", lambda _state: 0.0)
    mesh: Any = SimpleNamespace(session=session, runs=SimpleNamespace(ClaimRuns=None))
    minter: Any = SimpleNamespace(runner_token=lambda: "token")
    stop = asyncio.Event()
    warnings: list[str] = []
    log = SimpleNamespace(
        warning=lambda _event, *, reason: warnings.append(reason), info=lambda *_, **__: None
    )
    monkeypatch.setattr(claim, "log", log)
    claiming = asyncio.create_task(
        claim.claim_runs(
            stop,
            set(),
            mesh,
            minter,
            RunnerSettings.model_construct(max_runs=1, runner_id="r", claim_wait_seconds=1.0),
            until_room,
            execute,
        )
    )
    async with asyncio.timeout(60):
        await session.done.wait()
    stop.set()
    await claiming
    assert warnings == expected


async def until_room() -> None:
    """There is room."""


async def execute(_: Any) -> None:
    raise AssertionError("there is no run")
