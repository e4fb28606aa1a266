"""Bounds propagated forwards: every value as an affine form of the inputs.

Claim: for every x in box b there are symbols ``|e_g| <= 1`` and an ``|r_n| <= radius[b, n]`` with

    node(x)_n = center[b, n] + sum_g coeffs[g, b, n] * e_g + r_n.

The first symbols are the inputs, scaled to [-1, 1]; each relaxed neuron adds one for the error of
its relaxation, so that errors which meet again may cancel. One pass bounds every node, where a
backward pass starts anew at each; it costs one row per symbol, so it suits few inputs and boxes on
which few neurons are unstable. Symbols beyond a limit are added up in `radius`, where they cannot
cancel: always sound, only looser.

Shapes: G symbols, B boxes, ``*shape`` a node's. Everything is local to a rank.

Reference: Singh et al. 2018 (NeurIPS, Fast and effective robustness certification), theorems 3.1
to 3.3, for the relaxation with one slope per neuron; Xu et al. 2020 (arXiv 2002.12920), section
3.1, for bounds as functions of the input. Differs: the limit on symbols, and intersection with
interval bounds before a neuron is relaxed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import AffineOperator, Operator, num_elements
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.relu import ReluRelaxation
from auto_LiRPA_patches.operators.shape import Concat, Movement
from auto_LiRPA_patches.sharding.weights import WeightSource

# Numbers that one form's coefficients may hold where memory is not limited.
_MOST_NUMBERS = 1 << 26
# A step holds the old and the new coefficients, and their absolute values.
_COPIES = 3


@dataclass(frozen=True)
class AffineForm:
    """One node's values over B boxes; see the module for what it claims.

    Attributes:
        center: ``[B, *shape]``.
        coeffs: ``[G, B, *shape]``.
        radius: ``[B, *shape]`` >= 0, or None for zero.
    """

    center: Tensor
    coeffs: Tensor
    radius: Tensor | None

    @property
    def deviation(self) -> Tensor:
        """``[B, *shape]`` the most a value differs from the centre."""
        spread = self.coeffs.abs().sum(0)
        return spread if self.radius is None else spread + self.radius

    def interval(self) -> Interval:
        """The bounds that follow."""
        deviation = self.deviation
        return Interval(self.center - deviation, self.center + deviation)

    def padded(self, symbols: int) -> Tensor:
        """The coefficients of `symbols` symbols, those added later being zero here."""
        missing = symbols - self.coeffs.shape[0]
        if missing == 0:
            return self.coeffs
        return torch.cat([self.coeffs, self.coeffs.new_zeros(missing, *self.coeffs.shape[1:])])


@dataclass(frozen=True)
class FunctionalForms:
    """Linear functionals of the output, by their affine forms.

    Attributes:
        lower: ``[S, B]`` lower bounds.
        planes: ``[S, B, I]`` their slope by each input; zero where the input is fixed.
    """

    lower: Tensor
    planes: Tensor


def most_symbols(graph: Graph, batch: int, options: BoundOptions) -> int:
    """How many symbols a batch's forms may have within `options.memory_bytes`."""
    widest = max(num_elements(node.shape) for node in graph.nodes)
    numbers = _MOST_NUMBERS
    if options.memory_bytes is not None:
        numbers = options.memory_bytes // (8 * _COPIES)
    return numbers // max(1, batch * widest)


def forward_relaxations(
    graph: Graph, box: Interval, symbols: int
) -> tuple[Relaxations, AffineForm]:
    """Bounds of every node that some relaxation needs, and the output's form. No gradient.

    Args:
        graph: the network.
        box: ``[B, *input_shape]``.
        symbols: most symbols a form may have; see `most_symbols`.

    Returns:
        Relaxations with bounds of all nodes in ``graph.bounded``, each at least as tight as its
        interval image; and the form of the output.

    Raises:
        NonFiniteBoundError: a bound is not finite enough to go on.
        SoundnessError: bounds cross.
    """
    with torch.no_grad():
        propagation = _Propagation(graph, box, symbols)
        return propagation.state, propagation.run()


def functional_forms(form: AffineForm, matrix: Tensor, box: Interval) -> FunctionalForms:
    """Bounds of ``matrix @ output`` from the output's form.

    Args:
        form: of the output.
        matrix: ``[S, O]``.
        box: the boxes the form was made for.
    """
    center = form.center.flatten(1) @ matrix.T  # [B, S]
    coeffs = form.coeffs.flatten(2) @ matrix.T  # [G, B, S]
    deviation = coeffs.abs().sum(0)
    if form.radius is not None:
        deviation = deviation + form.radius.flatten(1) @ matrix.abs().T
    # What a symbol stands for: more than half the width where the box is a few units wide.
    radius = _center_and_radius(box)[1].flatten(1)
    inputs = radius.shape[1]
    planes = coeffs.new_zeros(matrix.shape[0], radius.shape[0], inputs)
    if coeffs.shape[0] >= inputs:
        # A plane may be too flat, never too steep.
        above = 1 + 4 * torch.finfo(radius.dtype).eps
        scale = radius.sign() / (radius * above).clamp(min=torch.finfo(radius.dtype).tiny)
        planes = (coeffs[:inputs] * scale.T.unsqueeze(2)).permute(2, 1, 0)
        planes = torch.nan_to_num(planes, nan=0.0, posinf=0.0, neginf=0.0)
    return FunctionalForms((center - deviation).T, planes)


class _Propagation:
    """Forms and bounds of one batch of boxes, node by node."""

    def __init__(self, graph: Graph, box: Interval, symbols: int) -> None:
        self.graph = graph
        self.state = Relaxations(graph, box)
        self.symbols = symbols
        self.forms: dict[int, AffineForm] = {0: _input_form(box, symbols)}
        self.used = self.forms[0].coeffs.shape[0]
        self.bounded = frozenset(graph.bounded)

    def run(self) -> AffineForm:
        """Forms up to the output."""
        graph = self.graph
        last_use = {source: i for i, node in enumerate(graph.nodes) for source in node.inputs}
        for index in range(1, graph.output + 1):
            node = graph.nodes[index]
            if node.operator is None:
                raise ValueError(f"{node.name}: a second input")
            self.forms[index] = self._form(index, node.operator)
            if index in self.bounded:
                self._bound(index)
            for source in set(node.inputs):
                if last_use[source] == index:
                    del self.forms[source]
        return self.forms[graph.output]

    def _bound(self, index: int) -> None:
        """The node's bounds: of its form, or of intervals where these are tighter."""
        image = self.state.interval(index)
        name = self.graph.nodes[index].name
        if index in self.graph.interval_exact:
            self.state.set_bounds(index, image.require_sound(name))
            return
        own = self.forms[index].interval()
        # A NaN stays one here, and is refused.
        tighter = Interval(
            torch.maximum(own.lower, image.lower), torch.minimum(own.upper, image.upper)
        )
        self.state.set_bounds(index, tighter.require_sound(name))

    def _form(self, index: int, operator: Operator) -> AffineForm:
        weights = self.graph.weights
        sources = [self.forms[source] for source in self.graph.nodes[index].inputs]
        if isinstance(operator, AffineOperator):
            return _through_affine(operator, weights, sources[0])
        if isinstance(operator, Movement | Concat | Sum):
            return _through_linear(operator, weights, sources)
        if isinstance(operator, Activation):
            return self._through_activation(index, operator, sources[0])
        return self._of_interval(index)

    def _of_interval(self, index: int) -> AffineForm:
        """What intervals say of a node: nothing is kept of how it depends on the inputs."""
        bounds = self.state.interval(index)
        center = bounds.lower / 2 + bounds.upper / 2
        radius = torch.maximum(bounds.upper - center, center - bounds.lower)
        return AffineForm(center, center.new_zeros(0, *center.shape), radius)

    def _through_activation(self, index: int, operator: Activation, form: AffineForm) -> AffineForm:
        """``f(v) = slope * v + middle + error``, a new symbol for the error of each element."""
        slope, middle, error = self._enclosure(index, operator)
        shape = form.center.shape
        slope, middle = slope.view(shape), middle.view(shape)
        center = torch.addcmul(middle, form.center, slope)
        coeffs = form.coeffs * slope
        radius = None if form.radius is None else form.radius * slope.abs()
        new, rest = _new_symbols(error, max(0, self.symbols - self.used))
        if rest is not None:
            rest = rest.view(shape)
            radius = rest if radius is None else radius + rest
        if new is not None:
            before = AffineForm(center, coeffs, radius).padded(self.used)
            coeffs = torch.cat([before, new.view(-1, *shape)])
            self.used = coeffs.shape[0]
        return AffineForm(center, coeffs, radius)

    def _enclosure(self, index: int, operator: Activation) -> tuple[Tensor, Tensor, Tensor]:
        """Slope, middle and error ``[B, N]``: ``|f(v) - slope * v - middle| <= error``."""
        relaxation = self.state.relaxation(index)
        if isinstance(relaxation, ReluRelaxation):
            # f lies between the chord and its parallel through zero.
            half = relaxation.intercept[0] / 2
            return relaxation.slope[0], half, half
        lines = operator.lines(relaxation, None)
        bounds = self.state.bounds[self.graph.nodes[index].inputs[0]].flatten()
        slope = (lines.lower_slope[0] + lines.upper_slope[0]) / 2
        low, high = [], []
        for end in (bounds.lower, bounds.upper):
            below = (lines.lower_slope[0] - slope) * end
            above = (lines.upper_slope[0] - slope) * end
            low.append(below if lines.lower_intercept is None else below + lines.lower_intercept[0])
            high.append(
                above if lines.upper_intercept is None else above + lines.upper_intercept[0]
            )
        least, most = torch.minimum(*low), torch.maximum(*high)
        middle = least / 2 + most / 2
        # Over a point both lines go through it, and rounding may put the lower one on top.
        return slope, middle, torch.maximum(most - middle, middle - least).clamp(min=0)


def _input_form(box: Interval, symbols: int) -> AffineForm:
    """One symbol per input; where that is more than allowed, intervals."""
    center, radius = _center_and_radius(box)
    inputs = radius.flatten(1).shape[1]
    if inputs > symbols:
        return AffineForm(center, center.new_zeros(0, *center.shape), radius)
    coeffs = torch.diag_embed(radius.flatten(1)).transpose(0, 1)  # [I, B, I]
    return AffineForm(center, coeffs.reshape(inputs, *center.shape), None)


def _center_and_radius(box: Interval) -> tuple[Tensor, Tensor]:
    center = box.lower / 2 + box.upper / 2
    # A unit more than half the width, so that rounding cannot leave a corner outside.
    above = 1 + torch.finfo(center.dtype).eps
    return center, torch.maximum(box.upper - center, center - box.lower) * above


def _through_affine(
    operator: AffineOperator, weights: WeightSource, form: AffineForm
) -> AffineForm:
    rows = operator.apply(weights, form.coeffs.flatten(0, 1))
    radius = None
    if form.radius is not None:
        radius = operator.apply(weights, form.radius, absolute=True)
    return AffineForm(
        operator.forward(weights, form.center), rows.unflatten(0, form.coeffs.shape[:2]), radius
    )


def _through_linear(
    operator: Operator, weights: WeightSource, sources: list[AffineForm]
) -> AffineForm:
    """Operators that move elements or add them up: signs matter to coefficients alone."""
    symbols = max(form.coeffs.shape[0] for form in sources)
    center = operator.forward(weights, *(form.center for form in sources))
    zero = operator.forward(weights, *(torch.zeros_like(form.center[:1]) for form in sources))
    rows = operator.forward(weights, *(form.padded(symbols).flatten(0, 1) for form in sources))
    coeffs = (rows - zero if bool(zero.any()) else rows).view(symbols, *center.shape)
    if all(form.radius is None for form in sources):
        return AffineForm(center, coeffs, None)
    radii = [torch.zeros_like(f.center) if f.radius is None else f.radius for f in sources]
    if isinstance(operator, Sum):
        ones = (1.0,) * len(sources)
        operator = Sum(operator.name, operator.input_shapes, operator.output_shape, ones)
    radius = operator.forward(weights, *radii)
    return AffineForm(center, coeffs, radius - zero if bool(zero.any()) else radius)


def _new_symbols(error: Tensor, most: int) -> tuple[Tensor | None, Tensor | None]:
    """One symbol ``[U, B, N]`` per relaxed element of each box, and the errors left over.

    Symbols are numbered per box: U is the largest number any box needs, at most `most`. The
    largest errors get them.

    Args:
        error: ``[B, N]`` >= 0, zero where the relaxation is exact.
    """
    needed = int(error.count_nonzero(dim=1).amax()) if error.numel() else 0
    count = min(needed, most)
    if needed == 0:
        return None, None
    if count == 0:
        return None, error
    values, places = error.topk(count, dim=1)
    new = error.new_zeros(count, *error.shape)
    new.scatter_(2, places.T.unsqueeze(2), values.T.unsqueeze(2))
    if needed <= most:
        return new, None
    return new, error.scatter(1, places, 0.0)
