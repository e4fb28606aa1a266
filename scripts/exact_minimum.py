"""The exact minimum of a ReLU network over a box, by mixed-integer programming.

Reads the network as plain numpy matrices and shares nothing with the engine, so that neither can
repeat a fault of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import torch
from onnx_graph import Residual
from torch import nn

SLACK = 1e-5
"""What the optimum may be off by: constraints may be violated a little, times weights."""

_OPTIONS = {
    "threads": 1,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 1e-9,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
}

_NEGLIGIBLE = 1e-8

Layer = tuple[np.ndarray, np.ndarray]
"""Matrix ``[outputs, inputs]`` and offset ``[outputs]``, float64."""


@dataclass(frozen=True, eq=False)
class LeastMargin:
    """The smallest margin of a clause over a box, from both sides.

    Attributes:
        lower: the solver's optimum.
        upper: the margin at the solver's point, by a float64 run of the network.
        point: ``[I]`` that point.
    """

    lower: float
    upper: float
    point: np.ndarray


def affine_layers(module: nn.Sequential, shape: tuple[int, ...]) -> list[Layer]:
    """The affine maps between the ReLUs of `module`, each found from its values on a basis."""
    layers: list[Layer] = []
    piece: list[nn.Module] = []
    for child in [*module, nn.ReLU()]:
        if not isinstance(child, nn.ReLU):
            piece.append(child)
            continue
        layer, shape = _affine(nn.Sequential(*piece), shape)
        layers.append(layer)
        piece = []
    return layers


def minimum(
    layers: list[Layer], functional: np.ndarray, low: np.ndarray, high: np.ndarray
) -> float:
    """min of ``functional . network(x)`` over ``low <= x <= high`` (flat)."""
    program = _Program()
    value = program.inputs(low, high, (len(low),))
    for depth, layer in enumerate(layers):
        value = program.affine(layer, value, (len(layer[1]),))
        if depth < len(layers) - 1:
            value = program.relu(value)
    return program.minimise(dict(zip(value.places, functional.tolist(), strict=True)))[0]


def least_margin(
    module: nn.Module, box: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...], clause: Layer
) -> LeastMargin:
    """min over a box of ``max_r (rows_r . network(x) - rhs_r)``.

    Args:
        module: Sequential and Residual of affine modules and ReLU.
        box: lower and upper corner, ``[I]`` each.
        shape: of one input.
        clause: rows ``[R, O]`` and right-hand sides ``[R]``.
    """
    program = _Program()
    inputs = program.inputs(*box, shape)
    output = program.network(module.eval(), inputs)
    rows, rhs = clause
    reach = np.abs(rows) @ np.maximum(np.abs(output.low), np.abs(output.high)) + np.abs(rhs) + 1.0
    (top,) = program.variables(-reach.max(keepdims=True), reach.max(keepdims=True))
    for row, limit in zip(rows.tolist(), rhs.tolist(), strict=True):
        terms = dict(zip(output.places, (-value for value in row), strict=True)) | {top: 1.0}
        program.rows.append((terms, -limit, np.inf))
    lower, values = program.minimise({top: 1.0})
    point = np.clip(values[inputs.places], *box)
    return LeastMargin(lower, float(margins(module, point[None], shape, clause)[0]), point)


def margins(
    module: nn.Module, points: np.ndarray, shape: tuple[int, ...], clause: Layer
) -> np.ndarray:
    """``max_r (rows_r . network(x) - rhs_r)`` of points ``[P, I]``: ``[P]``, in float64."""
    rows, rhs = clause
    return (outputs(module, points, shape) @ rows.T - rhs).max(axis=1)


def outputs(module: nn.Module, points: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``[P, O]`` of points ``[P, I]``, in float64; the module is float32 before and after."""
    try:
        with torch.no_grad():
            return module.double()(torch.from_numpy(points).view(-1, *shape)).flatten(1).numpy()
    finally:
        module.float()


def _affine(module: nn.Module, shape: tuple[int, ...]) -> tuple[Layer, tuple[int, ...]]:
    """An affine module's matrix and offset, and the shape of its output."""
    block = module.double().eval()
    size = int(np.prod(shape))
    with torch.no_grad():
        basis = torch.eye(size, dtype=torch.float64).view(size, *shape)
        offset = block(torch.zeros(1, *shape, dtype=torch.float64))
        columns = (block(basis) - offset).flatten(1)
    return (columns.T.numpy(), offset.flatten().numpy()), tuple(offset.shape[1:])


@dataclass(frozen=True, eq=False)
class _Value:
    """Variables of the program that stand for one tensor, flat, with bounds of each."""

    places: list[int]
    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]


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

    def inputs(self, low: np.ndarray, high: np.ndarray, shape: tuple[int, ...]) -> _Value:
        return _Value(self.variables(low, high), low, high, shape)

    def network(self, module: nn.Module, value: _Value) -> _Value:
        """The output of `module` for `value`."""
        if isinstance(module, nn.Sequential):
            for child in module:
                value = self.network(child, value)
            return value
        if isinstance(module, Residual):
            body, shortcut = self.network(module.body, value), self.network(module.shortcut, value)
            both = _Value(
                body.places + shortcut.places,
                np.concatenate([body.low, shortcut.low]),
                np.concatenate([body.high, shortcut.high]),
                (2 * len(body.places),),
            )
            eye = np.eye(len(body.places))
            return self.affine((np.hstack([eye, eye]), np.zeros(len(eye))), both, body.shape)
        if isinstance(module, nn.ReLU):
            return self.relu(value)
        layer, shape = _affine(module, value.shape)
        module.float()
        return self.affine(layer, value, shape)

    def affine(self, layer: Layer, value: _Value, shape: tuple[int, ...]) -> _Value:
        matrix, offset = layer
        center = matrix @ ((value.low + value.high) / 2) + offset
        radius = np.abs(matrix) @ ((value.high - value.low) / 2)
        low, high = center - radius, center + radius
        places = self.variables(low - 1e-6, high + 1e-6)
        for row, constant, place in zip(matrix, offset, places, strict=True):
            terms = dict(zip(value.places, (-row).tolist(), strict=True)) | {place: 1.0}
            self.rows.append((terms, float(constant), float(constant)))
        return _Value(places, low, high, shape)

    def relu(self, value: _Value) -> _Value:
        """Each ReLU ``a = max(z, 0)`` with ``l < z < u`` gets a binary d.

        ``a >= 0``, ``a >= z``, ``a <= u d``, ``a <= z - l (1 - d)``.
        """
        low, high = np.maximum(value.low, 0), np.maximum(value.high, 0)
        places = self.variables(low, high)
        bounds = zip(value.low.tolist(), value.high.tolist(), strict=True)
        for z, a, (lowest, highest) in zip(value.places, places, bounds, strict=True):
            # A coefficient below the solver's tolerance is a feature it may stumble over.
            if lowest >= -_NEGLIGIBLE:
                self.rows.append(({a: 1.0, z: -1.0}, 0.0, 0.0))
            elif highest > _NEGLIGIBLE:
                (d,) = self.variables(np.zeros(1), np.ones(1), integer=1)
                self.rows.append(({a: 1.0, z: -1.0}, 0.0, np.inf))
                self.rows.append(({a: 1.0, d: -highest}, -np.inf, 0.0))
                self.rows.append(({a: 1.0, z: -1.0, d: -lowest}, -np.inf, -lowest))
        return _Value(places, low, high, value.shape)

    def minimise(self, objective: dict[int, float]) -> tuple[float, np.ndarray]:
        """The least value of the objective, and all variables there.

        Raises:
            RuntimeError: the solver gave up.
        """
        solver = highspy.Highs()
        solver.silent()
        for name, value in _OPTIONS.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._model(objective))
        solver.run()
        status = solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS found no optimum: {solver.modelStatusToString(status)}")
        return float(solver.getInfo().objective_function_value), np.array(
            solver.getSolution().col_value
        )

    def _model(self, objective: dict[int, float]) -> highspy.HighsLp:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.low), len(self.rows)
        cost = np.zeros(len(self.low))
        cost[list(objective)] = list(objective.values())
        model.col_cost_ = cost
        model.col_lower_, model.col_upper_ = np.array(self.low), np.array(self.high)
        model.row_lower_ = np.array([row[1] for row in self.rows])
        model.row_upper_ = np.array([row[2] for row in self.rows])
        terms = [{place: v for place, v in row[0].items() if v} for row in self.rows]
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.concatenate([[0], np.cumsum([len(own) for own in terms])])
        matrix.index_ = np.array([place for own in terms for place in own], dtype=np.int32)
        matrix.value_ = np.array([value for own in terms for value in own.values()])
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[whole] for whole in self.integer]
        return model
