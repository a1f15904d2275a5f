"""Curves over sizes as SVG, on two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

Curve = list[tuple[float, float]]
"""Points (x, y), both > 0."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 60, 170, 34, 40
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2")


def plot(title: str, curves: Mapping[str, Curve], *, x: str, y: str) -> str:
    """The picture.

    Args:
        title: Above it.
        curves: Name to points.
        x: Name of the horizontal axis, whose marks are powers of two.
        y: Of the vertical one, whose marks are powers of ten.
    """
    points = [point for curve in curves.values() for point in curve] or [(1.0, 1.0)]
    left, right = (math.log2(f(p[0] for p in points)) for f in (min, max))
    bottom = math.floor(math.log10(min(p[1] for p in points)))
    top = max(bottom + 1, math.ceil(math.log10(max(p[1] for p in points))))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        part_x = (math.log2(point[0]) - left) / max(1.0, right - left)
        part_y = (math.log10(point[1]) - bottom) / (top - bottom)
        inner = HEIGHT - TOP - BOTTOM
        return LEFT + part_x * (WIDTH - LEFT - RIGHT), TOP + inner * (1.0 - part_y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">',
        "<style>text {font: 12px sans-serif}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}, {escape(y)}</text>',
    ]
    for power in range(bottom, top + 1):
        _, height = place((2**left, 10.0**power))
        parts.append(_line((LEFT, height), (WIDTH - RIGHT, height)))
        parts.append(_text(LEFT - 6, height + 4, f"{10.0**power:g}", "end"))
    for exponent in range(math.ceil(left), math.floor(right) + 1, 4):
        across, _ = place((2.0**exponent, 10.0**bottom))
        parts.append(_text(across, HEIGHT - BOTTOM + 18, f"{2**exponent:,}", "middle"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, x, "end"))
    for number, (name, curve) in enumerate(curves.items()):
        parts += _curve(number, name, [place(point) for point in curve])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(number: int, name: str, places: Curve) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    dashes = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
    path = " ".join(f"{across:.1f},{height:.1f}" for across, height in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    height = TOP + 16 * number
    yield f'<text x="{WIDTH - RIGHT + 12}" y="{height + 12}" fill="{colour}">{escape(name)}</text>'


def _line(begin: tuple[float, float], end: tuple[float, float]) -> str:
    places = f'x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {places} stroke="#ddd"/>'


def _text(across: float, height: float, words: str, anchor: str) -> str:
    return f'<text x="{across:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
