"""The delay of one tenant's small appends while another appends the largest entries, and the growth
of the time to mask a text with its size.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time
from typing import NamedTuple

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.secrets import mask_document, mask_text
from spawnmesh_runtime.impersonation import impersonate

from tests.bench.harness import Bench, Metric, Samples
from tests.bench.transcript import Transcript, answer, spoken, transcripts
from tests.support import tenancy

KIB, MIB = 1024, 1024 * 1024
SMALL_SECONDS = 10.0
PAUSE_SECONDS = 0.02
P99_BOUND_MS = 250.0
LINEAR_BOUND = 1.6
WORST = (
    "-----BEGIN A A A A A A A A A A A A PRIVATE KEY-----\\nabc sk-ant-abc123 bearer abcdefghijklm "
    "api_key=abcdefghijklmnopqrstuvwxy1 xoxb-abc-abc- http://user:password/ 12345678:abcdefgh "
)
"""Almost a secret of every form: each pattern tries at every place, and matches nowhere."""


class SmallAppends(NamedTuple):
    """The time that each append took until it succeeded, and the number of refusals before."""

    samples: Samples
    refused: int


async def run(bench: Bench) -> None:
    """Measure small appends alone and beside large ones, and then the masking of one text."""
    stack = await bench.stack()
    async with (
        transcripts(stack, ALWAYS_OFF, "bench-stall-large") as begin_large,
        transcripts(stack, ALWAYS_OFF, "bench-stall-small") as begin_small,
    ):
        large, small = await begin_large(), await begin_small()
        with impersonate("bench-stall-large"):
            await tenancy.prepare(large.peer, 1, transcripts=TranscriptSettings(mask_secrets=True))
        await large.append(answer(almost_secrets(MIB)))  # Starts what the service starts for it.
        alone = await _small_appends(small)
        large_seconds: list[float] = []
        beside = await _beside(large, large_seconds, small)
    bench.latency("stall.small_append.alone", alone.samples)
    bench.latency("stall.small_append.beside_4MiB", beside.samples, alone.samples)
    for name, appends, bound in (("alone", alone, None), ("beside_4MiB", beside, P99_BOUND_MS)):
        p99, count = appends.samples.percentile(99) * 1e3, len(appends.samples.seconds)
        bench.record(Metric(f"stall.small_append.{name}.p99", p99, "ms", None, None, count, bound=bound))
    name, count = "stall.small_append.beside_4MiB", len(beside.samples.seconds)
    longest = max(beside.samples.seconds) * 1e3
    bench.record(Metric(f"{name}.longest", longest, "ms", None, None, count))
    bench.record(Metric(f"{name}.refused", beside.refused, "", None, None, count, bound=0))
    if large_seconds:
        bench.latency("stall.append.4MiB", Samples(large_seconds))
    _linearity(bench, "mask_text", mask_text, almost_secrets)
    _linearity(bench, "mask_document", mask_document, lambda size: f'{{"text": "{almost_secrets(size)}"}}')


def almost_secrets(size: int) -> str:
    """Return a text of this size that costs much to mask."""
    return (WORST * (1 + size // len(WORST)))[:size]


async def _small_appends(small: Transcript) -> SmallAppends:
    """Append a small entry again and again, for some seconds."""
    seconds: list[float] = []
    refused = 0
    kib = answer(spoken(KIB))
    began = perf_counter()
    while perf_counter() - began < SMALL_SECONDS:
        start = perf_counter()
        refused += await _repeated(lambda: small.append(kib))
        seconds.append(perf_counter() - start)
        await asyncio.sleep(PAUSE_SECONDS)
    return SmallAppends(Samples(seconds), refused)


async def _repeated(append: Callable[[], Awaitable[None]]) -> int:
    """Append until it succeeds, and return how often it was refused: a caller that waits too long
    for a service takes it for one that hangs.
    """
    refused = 0
    while True:
        try:
            await append()
        except MeshError:
            refused += 1
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return refused


async def _beside(large: Transcript, large_seconds: list[float], small: Transcript) -> SmallAppends:
    """Measure small appends while the other tenant appends the largest entries, two at a time."""
    body = answer(almost_secrets(4 * MIB))

    async def again() -> None:
        while True:
            start = perf_counter()
            await _repeated(lambda: large.append(body))
            large_seconds.append(perf_counter() - start)

    appending = [asyncio.create_task(again()) for _ in range(2)]
    try:
        return await _small_appends(small)
    finally:
        for task in appending:
            task.cancel()
        await asyncio.gather(*appending, return_exceptions=True)


def _linearity(bench: Bench, name: str, mask: Callable[[str], str], text_of: Callable[[int], str]) -> None:
    """Compare the processor time for 4 MiB with four times that for 1 MiB."""

    def cost(size: int) -> float:
        text = text_of(size)
        began = process_time()
        mask(text)
        return process_time() - began

    least, taken = min(cost(MIB) for _ in range(3)) * 4, min(cost(4 * MIB) for _ in range(2))
    bench.record(
        Metric(f"stall.{name}.4MiB", taken * 1e3, "ms", least * 1e3, taken / least, 2, bound=LINEAR_BOUND)
    )
