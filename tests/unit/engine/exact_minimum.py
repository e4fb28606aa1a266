"""The exact minimum of a ReLU network over a box, by mixed-integer programming.

Reads the network as plain numpy matrices and shares nothing with the engine.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix
from torch import nn

SLACK = 1e-5
"""HiGHS accepts constraints violated by up to 1e-7; a few of them, times weights."""

Layer = tuple[np.ndarray, np.ndarray]
"""Matrix ``[outputs, inputs]`` and offset ``[outputs]``, float64."""


def affine_layers(module: nn.Sequential, shape: tuple[int, ...]) -> list[Layer]:
    """The affine maps between the ReLUs of `module`, each found from its values on a basis."""
    layers: list[Layer] = []
    piece: list[nn.Module] = []
    for child in [*module, nn.ReLU()]:
        if not isinstance(child, nn.ReLU):
            piece.append(child)
            continue
        block = nn.Sequential(*piece).double().eval()
        size = int(np.prod(shape))
        with torch.no_grad():
            basis = torch.eye(size, dtype=torch.float64).view(size, *shape)
            offset = block(torch.zeros(1, *shape, dtype=torch.float64))
            columns = (block(basis) - offset).flatten(1)
        layers.append((columns.T.numpy(), offset.flatten().numpy()))
        shape, piece = tuple(offset.shape[1:]), []
    return layers


def minimum(
    layers: list[Layer], functional: np.ndarray, low: np.ndarray, high: np.ndarray
) -> float:
    """min of ``functional . network(x)`` over ``low <= x <= high`` (flat).

    Each ReLU ``a = max(z, 0)`` with ``l < z < u`` gets a binary d:
    ``a >= 0``, ``a >= z``, ``a <= u d``, ``a <= z - l (1 - d)``.
    """
    program = _Program()
    inputs = program.variables(low, high)
    for depth, (matrix, offset) in enumerate(layers):
        center, radius = matrix @ ((low + high) / 2) + offset, np.abs(matrix) @ ((high - low) / 2)
        low, high = center - radius, center + radius
        inputs = program.affine(matrix, offset, inputs, low, high)
        if depth < len(layers) - 1:
            inputs = program.relu(inputs, low, high)
            low, high = np.maximum(low, 0), np.maximum(high, 0)
    return program.minimise(inputs, functional)


class _Program:
    """Variables and rows of a mixed-integer program, as they are added."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def variables(self, low: np.ndarray, high: np.ndarray, integer: int = 0) -> list[int]:
        first = len(self.low)
        self.low += low.tolist()
        self.high += high.tolist()
        self.integer += [integer] * len(low)
        return list(range(first, len(self.low)))

    def affine(
        self,
        matrix: np.ndarray,
        offset: np.ndarray,
        inputs: list[int],
        low: np.ndarray,
        high: np.ndarray,
    ) -> list[int]:
        outputs = self.variables(low - 1e-6, high + 1e-6)
        for row, constant, output in zip(matrix, offset, outputs, strict=True):
            terms = dict(zip(inputs, (-row).tolist(), strict=True)) | {output: 1.0}
            self.rows.append((terms, float(constant), float(constant)))
        return outputs

    def relu(self, inputs: list[int], low: np.ndarray, high: np.ndarray) -> list[int]:
        outputs = self.variables(np.maximum(low, 0), np.maximum(high, 0))
        for z, a, lowest, highest in zip(inputs, outputs, low.tolist(), high.tolist(), strict=True):
            if lowest >= 0:
                self.rows.append(({a: 1.0, z: -1.0}, 0.0, 0.0))
            elif highest > 0:
                (d,) = self.variables(np.zeros(1), np.ones(1), integer=1)
                self.rows.append(({a: 1.0, z: -1.0}, 0.0, np.inf))
                self.rows.append(({a: 1.0, d: -highest}, -np.inf, 0.0))
                self.rows.append(({a: 1.0, z: -1.0, d: -lowest}, -np.inf, -lowest))
        return outputs

    def minimise(self, outputs: list[int], functional: np.ndarray) -> float:
        count = len(self.low)
        matrix = lil_matrix((len(self.rows), count))
        for index, (terms, _, _) in enumerate(self.rows):
            for column, value in terms.items():
                matrix[index, column] = value
        cost = np.zeros(count)
        cost[outputs] = functional
        result = milp(
            cost,
            constraints=LinearConstraint(
                matrix.tocsr(), [row[1] for row in self.rows], [row[2] for row in self.rows]
            ),
            bounds=Bounds(self.low, self.high),
            integrality=self.integer,
            options={"mip_rel_gap": 0.0},
        )
        if result.status != 0:
            raise RuntimeError(f"HiGHS found no optimum: {result.message}")
        return float(result.fun)
