# SPDX-License-Identifier: MIT OR Apache-2.0

"""Streams in event loops."""

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import frameshare
import pytest

from support import PATIENCE, Publish, publish, runtime_folder

Start = Callable[[Callable[[], Awaitable[Any]]], Any]


def with_asyncio(task: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(task())  # type: ignore[arg-type]


def with_uvloop(task: Callable[[], Awaitable[Any]]) -> Any:
    return pytest.importorskip("uvloop").run(task())


def with_anyio(task: Callable[[], Awaitable[Any]]) -> Any:
    return pytest.importorskip("anyio").run(task, backend="asyncio")


def with_trio(task: Callable[[], Awaitable[Any]]) -> Any:
    pytest.importorskip("trio")
    return pytest.importorskip("anyio").run(task, backend="trio")


LOOPS = [with_asyncio, with_uvloop, with_anyio, with_trio]


@pytest.mark.parametrize("start", LOOPS)
def test_iteration_yields_all_frames_and_ends(start: Start, publish: Publish) -> None:
    publish("cam0", "-n", "300", "-r", "1", rate="1000")

    async def read() -> list[int]:
        with frameshare.open("cam0", policy="lossless", reconnect=False) as stream:
            return [frame.sequence async for frame in stream]

    assert start(read) == list(range(1, 301))


@pytest.mark.parametrize("start", LOOPS)
def test_timeout_raises_and_stream_continues(start: Start, publish: Publish) -> None:
    exporter = publish("cam0")

    async def read() -> None:
        with frameshare.open("cam0") as stream:
            assert await stream.anext(PATIENCE)
            exporter.send_signal(signal.SIGSTOP)
            with pytest.raises(frameshare.TimeoutError, match="no frame of cam0 within 0.05 s"):
                while True:
                    await stream.anext(0.05)
            exporter.send_signal(signal.SIGCONT)
            assert await stream.anext(PATIENCE)
            with pytest.raises(ValueError):
                await stream.anext(-1)

    start(read)


def test_cancellation_loses_no_frame(publish: Publish) -> None:
    publish("cam0", "-n", "500", "-r", "1", rate="2000")

    async def read() -> list[int]:
        found: list[int] = []
        with frameshare.open("cam0", policy="lossless", reconnect=False) as stream:
            for attempt in itertools.count():
                task = asyncio.ensure_future(stream.anext())
                # Cancelled after any number of turns of the loop, some of which wait for a frame.
                for turn in range(attempt % 8):
                    await asyncio.sleep(0.001 if turn == 5 else 0)
                task.cancel()
                try:
                    frame = await task
                except asyncio.CancelledError:
                    continue
                if frame is None:
                    return found
                found.append(frame.sequence)
        return found

    async def limited() -> list[int]:
        return await asyncio.wait_for(read(), PATIENCE)

    found = asyncio.run(limited())
    assert found == sorted(set(found)) and set(range(1, 501)) >= set(found)
    assert len(found) == 500, f"{500 - len(found)} frames were taken by cancelled tasks"


def test_two_tasks_share_a_stream(publish: Publish) -> None:
    publish("cam0", "-n", "200", "-r", "1", rate="1000")

    numbers: list[int] = []

    async def read(stream: frameshare.Stream) -> None:
        async for frame in stream:
            numbers.append(frame.sequence)

    async def both() -> None:
        with frameshare.open("cam0", policy="lossless", reconnect=False) as stream:
            tasks = [asyncio.ensure_future(read(stream)) for _ in range(2)]
            _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
            # The end comes once; the other task waits for a continuation.
            stream.close()
            for task in waiting:
                with pytest.raises(frameshare.ClosedError):
                    await task

    asyncio.run(both())
    # Each frame came to one of them.
    numbers.sort()
    assert numbers == list(range(numbers[0], numbers[0] + 200))


def test_close_and_interrupt_end_waits(publish: Publish) -> None:
    exporter = publish("cam0")

    async def waits() -> None:
        stream = frameshare.open("cam0")
        exporter.send_signal(signal.SIGSTOP)
        task = asyncio.ensure_future(anext_forever(stream))
        await asyncio.sleep(0.1)
        stream.interrupt()
        with pytest.raises(frameshare.InterruptedError):
            await asyncio.wait_for(task, PATIENCE)
        stream.interrupt(False)
        task = asyncio.ensure_future(anext_forever(stream))
        await asyncio.sleep(0.1)
        stream.close()
        with pytest.raises(frameshare.ClosedError):
            await asyncio.wait_for(task, PATIENCE)

    async def anext_forever(stream: frameshare.Stream) -> None:
        while True:
            await stream.anext()

    asyncio.run(waits())


def test_loop_sleeps_while_no_frame_comes(publish: Publish) -> None:
    """Without a change of the descriptor's state, a level-triggered loop would spin."""
    exporter = publish("cam0")

    async def read() -> None:
        with frameshare.open("cam0") as stream:
            assert await stream.anext(PATIENCE)
            exporter.send_signal(signal.SIGSTOP)
            with pytest.raises(frameshare.TimeoutError):
                while True:
                    await stream.anext(0.1)
            before = os.times()
            with pytest.raises(frameshare.TimeoutError):
                await stream.anext(0.5)
            after = os.times()
            assert after.user + after.system - before.user - before.system < 0.25

    asyncio.run(read())


def test_search_for_next_exporter_continues_in_loop(publish: Publish) -> None:
    exporter = publish("cam0")

    async def read() -> None:
        with frameshare.open("cam0") as stream:
            first = await stream.anext(PATIENCE)
            assert first is not None
            exporter.kill()
            exporter.wait()
            publish("cam0")
            async for frame in stream:
                if frame.session != first.session:
                    break
            assert stream.stats.reconnects == 1

    asyncio.run(asyncio.wait_for(read(), PATIENCE))
