"""Colours are told apart by people who see them otherwise, and on paper without colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from icl_bench.report.theme import DARK, LIGHT

SIGHT = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
"""Simulations on linear RGB at full severity (Machado, Oliveira and Fernandes 2009, table 1)."""

TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])

GROUNDS = [(LIGHT, "#ffffff"), (LIGHT, "#fbfcfd"), (DARK, "#191e25"), (DARK, "#12161b")]
"""Colours, and a card or a page of ``page.css`` that they stand on."""


def linear(colour: str) -> np.ndarray:
    """Linear RGB of ``#rrggbb``: ``(3,)``, 0 to 1."""
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB: ``(3,)``."""
    xyz = TO_XYZ @ rgb.clip(0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(first: np.ndarray, second: np.ndarray) -> float:
    """CIEDE2000 of two colours in CIELAB (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = first.tolist(), second.tolist()
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25**7)))
    c1, c2 = np.hypot(a1 * (1 + g), b1), np.hypot(a2 * (1 + g), b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * (1 + g))) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    far = abs(h1 - h2) > 180
    hue = (h1 + h2) / 2 + (0 if not far else 180 if h1 + h2 < 360 else -180)
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * np.cos(np.radians(hue - 30)) + 0.24 * np.cos(np.radians(2 * hue))
    t += 0.32 * np.cos(np.radians(3 * hue + 6)) - 0.2 * np.cos(np.radians(4 * hue - 63))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn) / 2) / (1 + 0.015 * chroma * t)
    rotation = (
        -2 * np.sqrt(chroma**7 / (chroma**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    )
    return float(np.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + rotation * by_chroma * by_hue))


def pairs(colours: Mapping[str, Any], most: int) -> Iterator[tuple[str, str]]:
    yield from combinations(colours["series"][:most], 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1.3802, -84.2814), (50, 0, -82.7485), 1.0),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_measure_gives_the_published_differences(one: Any, other: Any, expected: float):
    """Rows 1, 4, 20, 32 and 34 of the test data of Sharma, Wu and Dalal 2005."""
    assert difference(np.array(one), np.array(other)) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("most", "least"), [(3, 30), (4, 15), (8, 13)])
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_series_are_told_apart_whatever_colours_are_seen(
    sight: str, most: int, least: float, colours: Mapping[str, Any]
):
    for first, second in pairs(colours, most):
        seen = [lab(SIGHT[sight] @ linear(colour)) for colour in (first, second)]
        assert difference(*seen) > least, (first, second)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_three_series_are_told_apart_in_greys(colours: Mapping[str, Any]):
    for first, second in pairs(colours, 3):
        light = [lab(np.full(3, TO_XYZ[1] @ linear(colour)))[0] for colour in (first, second)]
        assert abs(light[0] - light[1]) > 15, (first, second)


@pytest.mark.parametrize(("colours", "ground"), GROUNDS)
def test_every_colour_stands_out_from_its_ground(colours: Mapping[str, Any], ground: str):
    """WCAG 2.2, criteria 1.4.3 and 1.4.11: 3:1 for marks, 4.5:1 for text."""
    for least, names in ((3, colours["series"]), (4.5, [colours["ink"], colours["soft"]])):
        for colour in names:
            low, high = sorted(TO_XYZ[1] @ linear(of) for of in (colour, ground))
            assert (high + 0.05) / (low + 0.05) >= least, colour
