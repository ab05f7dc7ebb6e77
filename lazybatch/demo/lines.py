"""Lines of text as pictures, and what the models made of them.

Owns: the texts, drawing them, the preprocessing PP-OCR's two models were trained with, and reading their answers.
Must not know: how models are served.

A line is drawn at the recogniser's height. Half of the lines are upside down, as scanned pages are: the direction
model says which, the recogniser reads the line the right way up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXTS = (
    "Departure 07:45",
    "Platform 12",
    "Keep away from fire",
    "Invoice 2024-0317",
    "Total 1,284.50 EUR",
    "Serial 4F7K-22QX",
    "Room 418, turn left",
    "Net weight 750 g",
    "Exit only after 22:00",
    "Order 66812 shipped",
    "Press to continue",
    "Reference 3.3 V",
    "Do not feed animals",
    "Signed in triplicate",
    "Contains soy and milk",
    "All times are local",
    "Batch the patient",
    "Serve urgent first",
    "Warranty void",
    "Page 17 of 203",
    "Latency 12.5 ms",
    "Queue here, please",
    "Gate closes at 06:30",
    "Thank you, good night",
)
"""Two dozen lines of print in the recogniser's alphabet."""

HEIGHT = 48
DIRECTION_WIDTH = 192
READER_WIDTH = 320
"""Widths, in pixels, the models see; PP-OCR's own settings."""

Image = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Line:
    """One drawn line: its text, whether it is upside down, and its picture (height, width), 0 black to 255 white."""

    text: str
    turned: bool
    pixels: NDArray[np.uint8]


def draw(texts: Sequence[str] = TEXTS, seed: int = 0) -> list[Line]:
    """Draw each text once, dark on light, with seeded contrast, noise and direction."""
    from matplotlib import get_data_path
    from PIL import Image as Picture
    from PIL import ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", 26)
    lines = []
    for index, text in enumerate(texts):
        left, _, right, _ = font.getbbox(text)
        paper, ink = int(rng.integers(215, 250)), int(rng.integers(0, 70))
        picture = Picture.new("L", (int(right - left) + 8, HEIGHT), paper)
        ImageDraw.Draw(picture).text((4 - left, HEIGHT // 2), text, font=font, fill=ink, anchor="lm")
        pixels = np.asarray(picture, dtype=np.float32) + rng.normal(0.0, 4.0, (HEIGHT, picture.width))
        turned = index % 2 == 1
        lines.append(Line(text, turned, _pixels(pixels[::-1, ::-1] if turned else pixels)))
    return lines


def _pixels(values: NDArray[Any]) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return pixels


def direction_input(line: Line) -> Image:
    """A row for the direction model: (3, 48, 192), the start of the line at its own proportions."""
    return _normalised(line.pixels, DIRECTION_WIDTH)


def reader_input(line: Line) -> Image:
    """A row for the recogniser: (3, 48, 320), the line the right way up, padded or squeezed to the width."""
    return _normalised(line.pixels[::-1, ::-1] if line.turned else line.pixels, READER_WIDTH)


def _normalised(pixels: NDArray[np.uint8], width: int) -> Image:
    """Scale to 48 pixels high and at most ``width`` wide, to [-1, 1], zero beyond the line's end; three channels."""
    from PIL import Image as Picture

    scaled_width = min(width, round(pixels.shape[1] * HEIGHT / pixels.shape[0]))
    picture = Picture.fromarray(np.ascontiguousarray(pixels)).resize(
        (scaled_width, HEIGHT), Picture.Resampling.BILINEAR
    )
    row = np.zeros((3, HEIGHT, width), dtype=np.float32)
    row[:, :, :scaled_width] = (np.asarray(picture, dtype=np.float32) / 255.0 - 0.5) / 0.5
    return row


def is_turned(probabilities: NDArray[Any]) -> bool:
    """The direction model's answer (2,): upright, turned by 180 degrees."""
    return bool(probabilities[1] > probabilities[0])


def read(probabilities: NDArray[Any], alphabet: Sequence[str]) -> str:
    """The recogniser's answer (steps, characters), greedily decoded: repeats collapse, character 0 is the blank."""
    best = probabilities.argmax(axis=-1)
    kept = best[(best != 0) & (best != np.concatenate(([0], best[:-1])))]
    return "".join(alphabet[index] for index in kept).strip()
