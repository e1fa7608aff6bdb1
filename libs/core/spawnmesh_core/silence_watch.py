"""Find out whether a dependency that keeps its connections open still answers."""

import asyncio
from collections.abc import Awaitable, Callable

from spawnmesh_core.answer_times import AnswerTimes
from spawnmesh_core.clock import monotonic_seconds

_QUESTION_COUNT = 2
# A silent dependency is asked anew, since its backlog of new connections may be full.
_REPEAT_SECONDS = 2.0
# A wait that takes this much longer than planned says that this process was held up itself.
_HELD_UP_RATIO = 1.5


class SilenceWatch:
    """Asks a dependency for an answer when something suspects it.

    It costs nothing before that. The dependency is silent if two questions, one after the other,
    get no answer within `answer_seconds` each, or up to three times as long if recent answers were
    slow. An answer to the first one counts also if it is
    late, and so does every answer that the owner counts: a busy machine is no silent one. The
    dependency is then asked until it answers. `ask` returns at any answer, and otherwise never.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[None]], answer_seconds: float, on_change: Callable[[bool], None]
    ) -> None:
        self.answer_count = 0
        """The owner counts what it receives from the dependency."""
        self.is_silent = False
        """The dependency does not answer at the moment."""
        self._ask = ask
        self._answer_seconds = answer_seconds
        self._times = AnswerTimes(answer_seconds)
        self._on_change = on_change
        self._asking: asyncio.Task[None] | None = None

    def suspect(self) -> None:
        """Start to ask for an answer, if that is not being done."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_until_answered())

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask_until_answered(self) -> None:
        seen, answer_seconds = self.answer_count, self._answer_seconds * self._times.timeout_factor()
        questions: list[asyncio.Task[None]] = []
        try:
            for _ in range(_QUESTION_COUNT):
                questions.append(asyncio.create_task(self._timed_question()))
                if await self._is_answered(questions, answer_seconds, seen):
                    return
            self.is_silent = True
            self._on_change(True)
            while not await self._is_answered(questions, _REPEAT_SECONDS, seen):
                questions.pop(0).cancel()
                questions.append(asyncio.create_task(self._timed_question()))
            self.is_silent = False
            self._on_change(False)
        finally:
            self.is_silent = False
            for question in questions:
                question.cancel()
            await asyncio.gather(*questions, return_exceptions=True)

    async def _timed_question(self) -> None:
        begun = monotonic_seconds()
        await self._ask()
        self._times.record(monotonic_seconds() - begun)

    async def _is_answered(self, questions: list[asyncio.Task[None]], seconds: float, seen: int) -> bool:
        """Wait for an answer, but not longer than `seconds`."""
        while True:
            begun = monotonic_seconds()
            answered, _ = await asyncio.wait(questions, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answered or self.answer_count != seen:
                return True
            if monotonic_seconds() - begun < seconds * _HELD_UP_RATIO:
                return False
