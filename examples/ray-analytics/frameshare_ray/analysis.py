# SPDX-License-Identifier: MIT OR Apache-2.0

"""Analyses: functions that make a small value, such as JSON, from a frame."""

import importlib
from collections.abc import Callable
from typing import Any

import frameshare

Analysis = Callable[[frameshare.Frame], Any]


def load(name: str) -> Analysis:
    """Returns the function that a text such as "package.module:function" names."""
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function, None) if function else None
    if not callable(found):
        raise ValueError(f'no analysis "{name}": expected "module:function", such as "{__name__}:brightness"')
    analysis: Analysis = found
    return analysis


def brightness(frame: frameshare.Frame) -> dict[str, float]:
    """Returns the mean of the first plane, from every eighth row and column."""
    import numpy as np

    luma = np.asarray(frame.plane(0))  # the exporter's memory: no copy
    return {"brightness": round(float(luma[::8, ::8].mean()), 1)}
