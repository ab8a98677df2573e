# SPDX-License-Identifier: MIT OR Apache-2.0

"""Video frames of other processes as arrays and tensors, without a copy."""

import atexit

from . import events
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
from ._frameshare import (
    CaptureAnnouncement,
    Colorimetry,
    Exporter,
    Frame,
    Plane,
    Slot,
    SlotPlane,
    Stats,
    Stream,
    StreamInfo,
    StreamWatch,
    __version__,
    _finish_logging,
    announce_capture,
    create,
    open,
    streams,
    watch_streams,
)
from ._many import Cameras, open_many
from ._results import Key, Matcher, ResultExporter, ResultStream, create_results, open_results
from ._rgb import rgb as _rgb_of_frame

__all__ = [
    "Cameras",
    "CaptureAnnouncement",
    "ClosedError",
    "Colorimetry",
    "Error",
    "Exporter",
    "Frame",
    "HeldError",
    "InterruptedError",
    "Key",
    "Matcher",
    "NotFoundError",
    "PermissionDeniedError",
    "Plane",
    "ReleasedError",
    "ResultExporter",
    "ResultStream",
    "Slot",
    "SlotPlane",
    "Stats",
    "Stream",
    "StreamInfo",
    "StreamWatch",
    "TimeoutError",
    "UnsupportedError",
    "__version__",
    "announce_capture",
    "create",
    "create_results",
    "events",
    "open",
    "open_many",
    "open_results",
    "streams",
    "watch_streams",
]

# The conversion to RGB is written in Python: it calls the application's libraries.
setattr(Frame, "rgb", _rgb_of_frame)  # noqa: B010

atexit.register(_finish_logging)
