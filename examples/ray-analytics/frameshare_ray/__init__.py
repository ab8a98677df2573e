# SPDX-License-Identifier: MIT OR Apache-2.0

"""Analytics on a Ray cluster: readers run where the frames are, and results cross nodes."""

from .placement import Options, Placement
from .records import Figures, Result, View

__all__ = ["Figures", "Options", "Placement", "Result", "View"]
