# SPDX-License-Identifier: MIT OR Apache-2.0

"""Frames for event loops: asyncio, uvloop, and trio.

The loop waits for the stream's descriptor. A frame is taken after the last `await` of a call, so that a cancellation
loses none.
"""

import asyncio
import builtins
import os
from typing import TYPE_CHECKING

from ._errors import TimeoutError

if TYPE_CHECKING:
    from ._frameshare import Frame, Stream


async def take(stream: "Stream", timeout: float | None = None) -> "Frame | None":
    """Waits for the next frame; `None` at the end of the stream. `TimeoutError` after `timeout` seconds."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is {timeout}, but must be a number of seconds, or None for no limit")
    loop = _running_loop()
    if loop is None:
        return await _take_in_trio(stream, timeout)
    if timeout is None:
        return await _take(stream, loop)
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await _take(stream, loop)
    except builtins.TimeoutError:
        if limit.expired():
            raise _late(stream, timeout) from None
        raise


async def iterate(stream: "Stream") -> "Frame":
    """Waits for the next frame of an iteration, letting the loop run other tasks first."""
    loop = _running_loop()
    if loop is None:
        import trio

        await trio.lowlevel.checkpoint()
        frame = await _take_in_trio(stream, None)
    else:
        await asyncio.sleep(0)
        frame = await _take(stream, loop)
    if frame is None:
        raise StopAsyncIteration
    return frame


def _late(stream: "Stream", timeout: float) -> TimeoutError:
    return TimeoutError(f"no frame of {stream.name} within {timeout} s")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _take(stream: "Stream", loop: asyncio.AbstractEventLoop) -> "Frame | None":
    while (frame := stream._poll()) is False:
        await _readable(stream.fileno(), loop)
    return None if frame is True else frame


async def _readable(fd: int, loop: asyncio.AbstractEventLoop) -> None:
    # A loop has one reader of a descriptor, and several tasks may wait for a stream.
    fd = os.dup(fd)
    try:
        ready = loop.create_future()
        loop.add_reader(fd, _set, ready)
        try:
            await ready
        finally:
            loop.remove_reader(fd)
    finally:
        os.close(fd)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def _take_in_trio(stream: "Stream", timeout: float | None) -> "Frame | None":
    import trio

    with trio.move_on_after(float("inf") if timeout is None else timeout):
        while (frame := stream._poll()) is False:
            fd = os.dup(stream.fileno())
            try:
                await trio.lowlevel.wait_readable(fd)
            finally:
                os.close(fd)
        return None if frame is True else frame
    assert timeout is not None
    raise _late(stream, timeout)
