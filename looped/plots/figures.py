"""The canvas of all pictures: one look, no window, a clear word where the library is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looped.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT_COLOURS = "Oranges"
DECODE_COLOURS = "Blues"
"""Colour maps of the two kinds of rows; a deeper loop is darker."""
HEAD_COLOUR = "#6a994e"
PADDING_COLOUR = "#e5e5e5"
"""Of padding, and of rows that rode although they had ended."""
HEAD_WIDTH = 0.15
"""Of a pass, for the head behind it: wide enough to see. How long it took, no log says."""
WINDOW_COLOUR = "#e0a458"
SIZE = (11.0, 4.5)
"""Inches."""


def require_matplotlib(otherwise: str) -> None:
    """UsageError if there is no matplotlib; `otherwise` says what else helps."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            f"pictures need matplotlib: pip install 'looped[plot]' (or matplotlib); {otherwise}"
        )


@contextmanager
def axes_for(path: Path, title: str) -> Iterator["Axes"]:
    """Axes to draw on; written as a PNG when the block ends without error."""
    # Figure, not pyplot: no global state, no window, nothing to close.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    yield axes
    staged = path.with_name(f".{path.name}.partial")
    figure.savefig(staged, format="png", dpi=120)
    staged.replace(path)


def depth_colour(is_prompt: bool, depth: int, num_planes: int) -> Any:
    """Colour of rows of a kind at a depth."""
    from matplotlib import colormaps

    name = PROMPT_COLOURS if is_prompt else DECODE_COLOURS
    return colormaps[name](0.35 + 0.6 * depth / max(num_planes - 1, 1))
