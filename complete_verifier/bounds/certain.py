"""What holds of the outputs whatever the input is, and which clauses it excludes.

A ReLU is never negative, a sigmoid lies in [0, 1], and softmax's outputs are shares of one. That is
so of the real-valued function, and of a single output in every runtime as well, so a constraint on
one output needs no allowance for rounding here: ``Y_0 > 1`` is impossible behind a softmax, though
1 is reached by rounding. A sum of shares is rounded, and has to clear an allowance as any bound.

Shapes: O outputs (flat), M rows of a clause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.operators.s_shaped import Sigmoid
from auto_LiRPA_patches.operators.shape import Reshape
from auto_LiRPA_patches.operators.softmax import Share
from complete_verifier.specification import Region, Specification
from complete_verifier.specification.clause import Clause

_UNITS = 8
_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class CertainOutputs:
    """The range of every output.

    Attributes:
        upper: every output lies in ``[0, upper]``.
        shares: so many outputs in a row add up to one; 0 where none do.
    """

    upper: float
    shares: int = 0

    @classmethod
    def of(cls, graph: Graph) -> CertainOutputs | None:
        """What the last operator tells; None where it tells nothing."""
        node = graph.nodes[graph.output]
        while isinstance(node.operator, Reshape):
            node = graph.nodes[node.inputs[0]]
        if isinstance(node.operator, Share):
            return cls(1.0, node.shape[-1])
        if isinstance(node.operator, Sigmoid):
            return cls(1.0)
        return cls(np.inf) if isinstance(node.operator, Relu) else None

    def exclude(self, clause: Clause) -> bool:
        """Whether some row of the clause holds for none of these outputs."""
        coefficients, rhs = clause.coefficients, clause.rhs
        if self.shares:
            grouped = coefficients.reshape(len(rhs), -1, self.shares)
            least = grouped.min(axis=2).sum(axis=1)
        else:
            with np.errstate(invalid="ignore"):
                least = np.where(coefficients < 0, coefficients * self.upper, 0.0).sum(axis=1)
        # Of one coefficient nothing is rounded, neither here nor where the network is run.
        alone = np.count_nonzero(coefficients, axis=1) == 1
        allowance = np.where(alone, 0.0, _UNITS * _EPSILON * np.abs(coefficients).sum(axis=1))
        impossible = (least > rhs + allowance) | (clause.strict & alone & (least >= rhs))
        return bool((impossible & np.isfinite(least)).any())


def possible(specification: Specification, graph: Graph) -> Specification:
    """The specification without the clauses that no output of the network can satisfy."""
    certain = CertainOutputs.of(graph)
    if certain is None:
        return specification

    def kept(region: Region) -> Region:
        clauses = tuple(clause for clause in region.clauses if not certain.exclude(clause))
        return region if len(clauses) == len(region.clauses) else replace(region, clauses=clauses)

    return replace(specification, regions=tuple(map(kept, specification.regions)))
