"""One table: the paper's figures beside those measured here, as text, Markdown, CSV and a plot."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABYTE = 1e6


@dataclass(frozen=True)
class Bars:
    """What the plot of a table shows.

    Attributes:
        label: heading of the vertical axis, with its unit.
        columns: headings of the columns whose numbers become bars, one colour each.
        stacked: the columns are parts of a whole; else they stand side by side.
    """

    label: str
    columns: tuple[str, ...]
    stacked: bool = False


@dataclass(frozen=True)
class Curves:
    """A plot of numbers over another one, a panel for each family of rows.

    Attributes:
        label: heading of the vertical axis (logarithmic), with its unit.
        over: heading of the column along the horizontal axis; rows without a number there are left
            out.
        columns: headings of the columns that become curves.

    Rows of one family begin with the same word.
    """

    label: str
    over: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under headings.

    Attributes:
        name: of the files, e.g. ``exp5``.
        title: one line.
        headings: of the columns; those of published figures begin with "paper".
        rows: text or numbers, as many as headings; None where there is nothing to compare.
        notes: one sentence each, shown below.
        plot: what is drawn; None = no plot.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    notes: tuple[str, ...] = ()
    plot: Bars | Curves | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(
                    f"{self.name}: expected {len(self.headings)} cells, got {len(row)}: {row}"
                )

    @property
    def text(self) -> str:
        """For a terminal: columns aligned."""
        cells = [self.headings, *(tuple(map(show, row)) for row in self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.headings))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.title, "", *(line.rstrip() for line in lines), "", *self.notes])

    @property
    def markdown(self) -> str:
        """For a page."""
        rows = [self.headings, ("---",) * len(self.headings)]
        rows += [tuple(map(show, row)) for row in self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([f"# {self.title}", "", *lines, "", *(f"- {n}" for n in self.notes), ""])

    def write(self, folder: Path) -> list[Path]:
        """Write NAME.md, NAME.csv and, where matplotlib is installed, NAME.png; returns them."""
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{self.name}.md", folder / f"{self.name}.csv"]
        written[0].write_text(self.markdown, encoding="utf-8")
        with written[1].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([self.headings, *self.rows])
        if self.plot is not None:
            path = folder / f"{self.name}.png"
            if draw(self, self.plot, path):
                written.append(path)
        return written


def show(value: object) -> str:
    """A cell as people read it; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def draw(table: Table, plot: Bars | Curves, path: Path) -> bool:
    """Draw `plot` of `table` to `path`; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = _bars(table, plot) if isinstance(plot, Bars) else _curves(table, plot)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _bars(table: Table, bars: Bars) -> Figure:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(1.5 + 1.6 * len(table.rows), 4.0))
    width = 0.8 if bars.stacked else 0.8 / len(bars.columns)
    below = [0.0] * len(table.rows)
    for number, heading in enumerate(bars.columns):
        place = table.headings.index(heading)
        heights = [_height(row[place]) for row in table.rows]
        offset = 0.4 if bars.stacked else (number + 0.5) * width
        spots = [row + offset for row in range(len(table.rows))]
        axes.bar(spots, heights, width, bottom=below if bars.stacked else 0.0, label=heading)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xticks([row + 0.4 for row in range(len(table.rows))])
    axes.set_xticklabels([show(row[0]) for row in table.rows])
    axes.set_ylabel(bars.label)
    axes.set_title(table.title, fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    return figure


def _curves(table: Table, curves: Curves) -> Figure:
    from matplotlib import pyplot

    families = _families(table, curves.over)
    figure, panels = pyplot.subplots(
        1, max(1, len(families)), figsize=(1.0 + 4.0 * max(1, len(families)), 4.0), squeeze=False
    )
    across = table.headings.index(curves.over)
    for axes, (family, rows) in zip(panels[0], families.items(), strict=False):
        # Curves that coincide stay visible: each later one is thinner, with a smaller mark.
        for number, heading in enumerate(curves.columns):
            place = table.headings.index(heading)
            points = sorted((_height(row[across]), _height(row[place])) for row in rows)
            thin = len(curves.columns) - number
            axes.plot(
                *zip(*points, strict=True),
                "os^vDP"[number % 6] + "-",
                label=heading,
                linewidth=1.2 * thin,
                markersize=2 + 3 * thin,
            )
        axes.set_yscale("log")
        axes.set_xlabel(curves.over)
        axes.set_ylabel(curves.label)
        axes.set_title(family, fontsize=9)
        axes.legend(fontsize=8, loc="upper left")
    figure.suptitle(table.title, fontsize=9)
    return figure


def _families(table: Table, over: str) -> dict[str, list[tuple[object, ...]]]:
    """The rows with a number under `over`, by the first word of their name."""
    across = table.headings.index(over)
    families: dict[str, list[tuple[object, ...]]] = {}
    for row in table.rows:
        if row[across] is not None:
            families.setdefault(show(row[0]).split()[0], []).append(row)
    return families


def _height(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def saving(of: float, against: float) -> float:
    """How much less `of` is than `against`, in per cent."""
    return 100.0 * (1.0 - of / against)


def worst(values: Sequence[int]) -> int:
    """The largest over all ranks: what a device must have."""
    return max(values)
