"""Random small networks with random properties whose answer lies close to either side.

Every case follows from its seed alone.

Shape letters: I inputs, O outputs, R rows of a clause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from exact_minimum import Layer, least_margin, margins
from onnx_graph import Residual
from torch import nn

_OF_INPUTS = ("naive", "sb", "brute-force")
_OF_ACTIVATIONS = ("kfsb", "fsb", "babsr", "intercept", "kfsb-intercept-only", "random")
_SMOOTH_INPUTS = 3  # few enough for a grid


@dataclass(frozen=True, eq=False)
class Box:
    """One input box with its unsafe set.

    Attributes:
        low, high: ``[I]`` float64.
        clauses: rows ``[R, O]`` and right-hand sides ``[R]`` each; unsafe where all rows of one
            clause have ``row . y <= rhs``.
        least: per clause, the smallest margin over the box, from below and from above; the lower
            side is -inf where the network is not piecewise linear.
    """

    low: np.ndarray
    high: np.ndarray
    clauses: tuple[Layer, ...]
    least: tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class Case:
    """One network, one property, one way to decide it.

    Attributes:
        seed: everything else follows from it.
        kind: of the network.
        module: float32, in eval mode.
        shape: of one input.
        num_outputs: O.
        boxes: the property is violated where one of them is.
        flags: of the command line.
    """

    seed: int
    kind: str
    module: nn.Module
    shape: tuple[int, ...]
    num_outputs: int
    boxes: tuple[Box, ...]
    flags: tuple[str, ...]

    @property
    def least(self) -> tuple[float, float]:
        """The property's smallest margin, from below and from above; violated if <= 0."""
        sides = [side for box in self.boxes for side in box.least]
        return min(low for low, _ in sides), min(high for _, high in sides)

    @property
    def scale(self) -> float:
        """The size of the numbers that margins are differences of, at least 1."""
        return max(1.0, *(float(np.abs(rhs).max()) for b in self.boxes for _, rhs in b.clauses))


def make_case(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind = str(rng.choice(["mlp", "deep", "conv", "residual", "norm", "sigmoid", "tanh"]))
    num_outputs = int(rng.integers(1, 4))
    module, shape = _network(kind, num_outputs, rng)
    count = int(rng.choice([1, 1, 2]))
    holds = bool(rng.random() < 0.5)
    boxes = tuple(_box(module, shape, num_outputs, kind, holds, rng) for _ in range(count))
    return Case(seed, kind, module, shape, num_outputs, boxes, _flags(rng))


def _network(
    kind: str, num_outputs: int, rng: np.random.Generator
) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "conv":
        shape: tuple[int, ...] = (int(rng.integers(1, 3)), 5, 4)
        width = int(rng.integers(1, 4))
        flat = width * 3 * 2
        module: nn.Module = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, 6),
            nn.ReLU(),
            nn.Linear(6, num_outputs),
        )
    elif kind == "norm":
        shape = (1, 4, 4)
        norm = nn.BatchNorm2d(2)
        for statistic in (norm.running_mean, norm.running_var):
            if statistic is not None:
                statistic.copy_(0.5 + torch.rand(2))
        body = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 1))
        module = nn.Sequential(
            nn.Conv2d(1, 2, 2, stride=2),
            norm,
            nn.ReLU(),
            Residual(body, nn.Conv2d(2, 2, 1)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, num_outputs),
        )
    else:
        inputs = int(rng.integers(1, _SMOOTH_INPUTS + 1 if kind in ("sigmoid", "tanh") else 6))
        shape = (inputs,)
        module = _dense(kind, inputs, num_outputs, rng)
    factor = float(rng.uniform(0.8, 2.5))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(factor)
    return module.eval(), shape


def _dense(kind: str, inputs: int, num_outputs: int, rng: np.random.Generator) -> nn.Module:
    width = int(rng.integers(2, 11))
    if kind == "residual":
        body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        layers = [nn.Linear(inputs, width), nn.ReLU(), Residual(body, nn.Linear(width, width))]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, num_outputs))
    activation = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh}.get(kind, nn.ReLU)
    depth = 4 if kind == "deep" else int(rng.integers(1, 3))
    width = min(width, 6) if kind == "deep" else width
    sizes = [inputs, *[width] * depth]
    stack: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        stack += [nn.Linear(before, after), activation()]
    return nn.Sequential(*stack, nn.Linear(width, num_outputs))


def _box(
    module: nn.Module,
    shape: tuple[int, ...],
    num_outputs: int,
    kind: str,
    holds: bool,
    rng: np.random.Generator,
) -> Box:
    size = int(np.prod(shape))
    center, radius = rng.normal(size=size), rng.uniform(0.0, 1.5, size=size)
    if size > 6:
        radius /= 4
    radius[rng.random(size) < 0.1] = 0.0
    low, high = center - radius, center + radius
    if rng.random() < 0.7:  # corners a float32 can meet; else decimals
        low, high = (side.astype(np.float32).astype(np.float64) for side in (low, high))
    clauses, least = [], []
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        rows = rng.normal(size=(int(rng.choice([1, 1, 2, 3])), num_outputs)).round(3)
        rhs = _somewhere(module, shape, (low, high), rows, rng)
        found = _least(module, shape, (low, high), (rows, rhs), kind)
        target = _gap(rng) if holds or rng.random() < 0.3 else -_gap(rng)
        shift = found[1] - target
        rhs = rhs + shift
        clauses.append((rows, rhs))
        least.append((found[0] - shift, found[1] - shift))
    return Box(low, high, tuple(clauses), tuple(least))


def _gap(rng: np.random.Generator) -> float:
    """How far the smallest margin lies from zero: near, or far."""
    return float(10.0 ** rng.uniform(-4.5, 0.3))


def _somewhere(
    module: nn.Module,
    shape: tuple[int, ...],
    box: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Right-hand sides ``[R]`` near values that the rows take."""
    points = box[0] + rng.random((200, len(box[0]))) * (box[1] - box[0])
    values = np.stack([margins(module, points, shape, (row[None], np.zeros(1))) for row in rows])
    return np.array([rng.choice(own) for own in values])


def _least(
    module: nn.Module,
    shape: tuple[int, ...],
    box: tuple[np.ndarray, np.ndarray],
    clause: Layer,
    kind: str,
) -> tuple[float, float]:
    """The smallest margin from below and from above."""
    if kind not in ("sigmoid", "tanh"):
        found = least_margin(module, box, shape, clause)
        return found.lower, found.upper
    return -np.inf, _sampled(module, shape, box, clause)


def _sampled(
    module: nn.Module, shape: tuple[int, ...], box: tuple[np.ndarray, np.ndarray], clause: Layer
) -> float:
    """The smallest margin on a grid that closes in on its best point."""
    low, high = box
    side = {1: 4001, 2: 201, 3: 41}[len(low)]
    best = np.inf
    for _ in range(12):
        axes = [np.linspace(a, b, side) for a, b in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low))
        values = margins(module, grid, shape, clause)
        place = int(values.argmin())
        best = min(best, float(values[place]))
        reach = 2.5 * (high - low) / (side - 1)
        low = np.maximum(grid[place] - reach, box[0])
        high = np.minimum(grid[place] + reach, box[1])
        side = {1: 101, 2: 21, 3: 11}[len(low)]
    return best


_BOUNDS = ("alpha-crown", "alpha-crown", "crown", "crown-ibp", "ibp")
_BOUNDS_INPUTS = ("alpha-crown", "forward", "crown", "crown-ibp", "forward+crown")


# In synchronous runs refinement comes first; otherwise small networks are decided before it.
_REFINED = ("--complete_verifier", "bab-refine", "--force_synchronous")


def _flags(rng: np.random.Generator) -> tuple[str, ...]:
    """One way to decide: attack, bounds, branching, limits."""

    def pick(*values: object) -> str:
        return str(rng.choice(np.array(values, dtype=object)))

    def sometimes(share: float, *flags: str) -> tuple[str, ...]:
        return flags if rng.random() < share else ()

    splits_inputs = rng.random() < 0.4
    methods = _OF_INPUTS if splits_inputs else _OF_ACTIVATIONS
    return (
        *("--pgd_order", pick("skip", "skip", "before", "after")),
        *("--pgd_steps", pick(2, 20), "--pgd_restarts", pick(1, 5)),
        *("--bound_prop_method", pick(*(_BOUNDS_INPUTS if splits_inputs else _BOUNDS))),
        *("--init_iteration", pick(3, 10, 20), "--iteration", pick(0, 1, 5, 20)),
        *("--activation_bound_option", pick("adaptive", "same-slope", "zero-lb", "one-lb")),
        *("--complete_verifier", pick("bab", "bab", "bab", "auto")),
        *(("--enable_input_split",) if splits_inputs else ()),
        *("--branching_method", pick(*methods), "--branching_candidates", pick(1, 3, 8)),
        *("--branching_reduceop", pick("min", "max")),
        *("--tree_traversal", pick("breadth_first", "depth_first")),
        *("--batch_size", pick(1, 3, 16, 64, 512), "--max_domains", pick(8, 200, 1e5, 1e5)),
        *("--max_iterations", pick(2, 20, 100, 100), "--timeout", pick(1, 3, 3)),
        *("--lr_alpha", pick(0.01, 0.1), "--lr_beta", pick(0.05, 0.5)),
        *("--input_split_adv_check", pick(-1, 0, 20), "--seed", pick(1, 2, 3)),
        *sometimes(0.2, "--force_synchronous"),
        *sometimes(0.15, "--double_fp"),
        *sometimes(0.2, "--no_alpha"),
        *sometimes(0.2, "--no_sparse_interm"),
        *sometimes(0.2, "--no_sparse_alpha"),
        *sometimes(0.2, "--no_ibp_enhancement"),
        *sometimes(0.2, "--no_compare_input_split_with_old_bounds"),
        *sometimes(0.1, "--no_prune_after_crown"),
        *sometimes(0.1, "--decision_thresh", "0.001"),
        *sometimes(0.1, "--sb_sum"),
        *("--branching_point_method", pick("uniform", "opt")),
        *sometimes(0.3, *_REFINED),
    )
