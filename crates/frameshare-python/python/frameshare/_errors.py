# SPDX-License-Identifier: MIT OR Apache-2.0

"""Exceptions of the package. Their texts are the engine's."""

import builtins


class Error(RuntimeError):
    """A call failed. The base of all exceptions of this package."""


class NotFoundError(Error):
    """No exporter of that name was found, or none answered, within the time limit."""


class PermissionDeniedError(Error):
    """The exporter runs as another user, or its socket does not let this user in."""


class ClosedError(Error):
    """The stream is over: its exporter has stopped or died, or this side has closed it."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001
    """No frame came within the time limit."""


class InterruptedError(Error, builtins.InterruptedError):  # noqa: A001
    """`Stream.interrupt` ended the wait."""


class HeldError(Error):
    """This process holds all frames that it may hold, so that no further one can come."""


class ReleasedError(Error):
    """The frame was released, and its memory may hold another one."""


class UnsupportedError(Error):
    """The format, the GPU or the machine does not support the call."""
