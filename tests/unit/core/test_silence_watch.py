"""A dependency is silent if it answers neither of two questions."""

import asyncio
from collections.abc import Callable

from spawnmesh_core.silence_watch import SilenceWatch

from tests.support.waiting import eventually


class Dependency:
    """Answers questions when told to."""

    def __init__(self) -> None:
        self.questions: list[asyncio.Event] = []
        self.changes: list[bool] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self.watch = SilenceWatch(self._ask, 0.05, self.changes.append)

    def at_question(self, number: int, action: Callable[[], None]) -> None:
        self._actions[number] = action

    def is_asked_anew(self, known_count: int) -> bool:
        """Suspect it, which has no effect before it is known whether it is silent."""
        self.watch.suspect()
        return len(self.questions) > known_count

    async def _ask(self) -> None:
        answer = asyncio.Event()
        self.questions.append(answer)
        self._actions.pop(len(self.questions), lambda: None)()
        await answer.wait()


async def test_dependency_is_silent_until_it_answers_a_question() -> None:
    dependency = Dependency()
    dependency.watch.suspect()
    await eventually(lambda: dependency.watch.is_silent)
    assert len(dependency.questions) == 2
    dependency.questions[0].set()
    await eventually(lambda: not dependency.watch.is_silent)
    assert dependency.changes == [True, False]
    await dependency.watch.close()


async def test_dependency_is_asked_anew_while_it_is_silent() -> None:
    dependency = Dependency()
    dependency.watch.suspect()
    await eventually(lambda: len(dependency.questions) == 3)
    assert dependency.watch.is_silent
    dependency.questions[2].set()
    await eventually(lambda: not dependency.watch.is_silent)
    await dependency.watch.close()


async def test_late_answer_to_the_first_question_counts() -> None:
    dependency = Dependency()
    dependency.at_question(2, lambda: dependency.questions[0].set())
    dependency.watch.suspect()
    await eventually(lambda: dependency.is_asked_anew(2))
    assert dependency.changes == []
    await dependency.watch.close()


async def test_answer_that_the_owner_counts_is_evidence() -> None:
    dependency = Dependency()

    def count() -> None:
        dependency.watch.answer_count += 1

    dependency.at_question(2, count)
    dependency.watch.suspect()
    await eventually(lambda: dependency.is_asked_anew(2))
    assert dependency.changes == []
    await dependency.watch.close()


async def test_nothing_is_silent_after_close() -> None:
    dependency = Dependency()
    dependency.watch.suspect()
    await eventually(lambda: dependency.watch.is_silent)
    await dependency.watch.close()
    assert not dependency.watch.is_silent
