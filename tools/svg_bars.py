# SPDX-License-Identifier: MIT OR Apache-2.0
"""Horizontal bars as SVG, readable on light and dark pages, without dependencies."""

import html
import math

WIDTH = 760
LABEL = 150  # Width of the groups' names.
RIGHT = 130  # Room for figures beside the longest bar.
BAR = 15
GAP = 14  # Between two groups.

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de; }
  text { fill: #1f2328; font: 12px system-ui, sans-serif; }
  .title { font-weight: 600; font-size: 14px; }
  .note, .figure { fill: #59636e; font-size: 11px; }
  .axis { stroke: #818b98; }
  .spread { stroke: #d4a72c; stroke-width: 1.5; }
  .s0 { fill: #0969da; } .s1 { fill: #bc4c00; } .s2 { fill: #6e7781; } .s3 { fill: #1a7f37; }
  .n0 { fill: #54aeff; } .n1 { fill: #0969da; } .n2 { fill: #0a3069; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    text { fill: #f0f6fc; }
    .note, .figure { fill: #9198a1; }
    .axis { stroke: #656c76; }
    .s0 { fill: #4493f8; } .s1 { fill: #db6d28; } .s2 { fill: #9198a1; } .s3 { fill: #3fb950; }
    .n0 { fill: #b6e3ff; } .n1 { fill: #4493f8; } .n2 { fill: #1158c7; }
  }
"""


def bars(title, note, series, panels, line=None, kind="s"):
    """A chart of panels. A panel is a title and its groups: a name, and a Spread or None for each series.

    Bars end at the median, and a thin line goes from least to most. `line` draws a vertical line at
    a value. `kind` is "s" for series of their own colors and "n" for shades of one color, which
    stand for rising numbers.
    """
    body, y = [], 26
    body.append(f'<text class="title" x="16" y="{y}">{html.escape(title)}</text>')
    for row in note:
        y += 17
        body.append(f'<text class="note" x="16" y="{y}">{html.escape(row)}</text>')
    if len(series) > 1:
        y += 24
        x = 16
        for index, name in enumerate(series):
            body.append(f'<rect class="{kind}{index}" x="{x}" y="{y - 10}" width="11" height="11" rx="2"/>')
            body.append(f'<text x="{x + 16}" y="{y}">{html.escape(name)}</text>')
            x += 36 + 7 * len(name)
    for name, groups in panels:
        y += 30
        body.append(f'<text class="title" x="16" y="{y}">{html.escape(name)}</text>')
        y += 10
        y = panel(body, y, groups, line, kind)
    height = y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def panel(body, y, groups, line, kind):
    """Draws the groups of a panel below `y`; returns the y below it."""
    medians = [spread.median for _, spreads in groups for spread in spreads if spread]
    # The scale is that of medians; a longer spread is cut off at the edge.
    scale = (WIDTH - LABEL - RIGHT) / max([*medians, line or 0])
    edge = WIDTH - 66
    top = y
    for name, spreads in groups:
        middle = y + len(spreads) * BAR / 2 + 4
        body.append(f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{html.escape(name)}</text>')
        for index, spread in enumerate(spreads):
            if spread is None:
                body.append(f'<text class="figure" x="{LABEL + 4}" y="{y + 11}">not run</text>')
            else:
                end = LABEL + spread.median * scale
                least, most = (min(LABEL + value * scale, edge) for value in (spread.least, spread.most))
                size = f'width="{end - LABEL:.1f}" height="{BAR - 3}" rx="1"'
                body.append(f'<rect class="{kind}{index}" x="{LABEL}" y="{y + 1}" {size}/>')
                body.append(
                    f'<line class="spread" x1="{least:.1f}" x2="{most:.1f}" y1="{y + 7}" y2="{y + 7}"/>'
                )
                at = max(end, most) + 6
                body.append(f'<text class="figure" x="{at:.1f}" y="{y + 11}">{figure(spread.median)}</text>')
            y += BAR
        y += GAP
    y -= GAP - 6
    body.append(f'<line class="axis" x1="{LABEL}" x2="{LABEL}" y1="{top - 2}" y2="{y}"/>')
    if line is not None:
        x = LABEL + line * scale
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{top - 2}" y2="{y}"'
        body.append(f'<line class="axis" stroke-dasharray="4 3" {ends}/>')
    return y


def figure(value):
    """A figure with three digits, grouped."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


class Spread:
    """Median, least and most of the rounds."""

    def __init__(self, values):
        ordered = sorted(values)
        count = len(ordered)
        self.median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        self.least, self.most = ordered[0], ordered[-1]

    @staticmethod
    def of(values):
        """The spread of the values that are numbers; None without any."""
        values = [value for value in values if value is not None and math.isfinite(value)]
        return Spread(values) if values else None

    def __str__(self):
        if self.least == self.most:
            return figure(self.median)
        return f"{figure(self.median)} ({figure(self.least)} to {figure(self.most)})"
