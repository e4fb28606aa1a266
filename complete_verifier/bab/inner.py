"""Bound inner neurons anew in every subproblem (`bab.recompute_interm`)."""

from __future__ import annotations

from dataclasses import dataclass

from auto_LiRPA_patches.engine.chunks import row_elements
from auto_LiRPA_patches.engine.inner_bounds import InnerEffort, InnerRows, tighten
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems

# Coefficients, their gradients, α with two moments and lines, per element.
_COPIES = 12
_CHUNK_BYTES = 1 << 28
_CHUNK_ROWS = 64  # also what a node with few rows is filled up to, in tiles


@dataclass(frozen=True)
class InnerBounding:
    """How a region's inner neurons are bounded in subproblems.

    Attributes:
        rows: the neurons, in topological order of their nodes.
        beta: steps of α and β; 0 iterations evaluate the root's α.
        options: memory and clock.
        in_tiles: see `Bounding`.
    """

    rows: tuple[InnerRows, ...]
    beta: BetaOptions
    options: BoundOptions
    in_tiles: bool

    def tighten(self, problem: Subproblems) -> Subproblems:
        """The same subproblems with inner bounds at least as tight."""
        return tighten(problem, self.rows, lambda rows: self._effort(problem, rows))

    def _effort(self, problem: Subproblems, rows: InnerRows) -> InnerEffort:
        limit = self.options.memory_bytes
        if self.in_tiles or limit is None:
            limit = _CHUNK_BYTES
        per_row = 4 * _COPIES * problem.count * row_elements(problem.graph, rows.node)
        return InnerEffort(
            beta=self.beta,
            chunk_rows=max(2, min(_CHUNK_ROWS, limit // per_row)),
            in_tiles=self.in_tiles,
            out_of_time=self.options.out_of_time,
        )
