# SPDX-License-Identifier: MIT OR Apache-2.0

"""Video frames of other processes as arrays and tensors, without a copy."""

from ._errors import (
    ClosedError,
    Error,
    HeldError,
    InterruptedError,
    NotFoundError,
    PermissionDeniedError,
    ReleasedError,
    TimeoutError,
    UnsupportedError,
)
from ._frameshare import Colorimetry, Frame, Plane, Stream, __version__, open

__all__ = [
    "ClosedError",
    "Colorimetry",
    "Error",
    "Frame",
    "HeldError",
    "InterruptedError",
    "NotFoundError",
    "PermissionDeniedError",
    "Plane",
    "ReleasedError",
    "Stream",
    "TimeoutError",
    "UnsupportedError",
    "__version__",
    "open",
]
