"""Which neuron to split next: scores from the coefficients of the last backward pass.

For a neuron with pre-activation bounds l < 0 < u, let a be the coefficient of its output in the
bound, s = u / (u - l) and t = -l u / (u - l) the chord's slope and intercept, b the constant term
of its layer.

* intercept: ``|min(a, 0) t|``, what the chord's intercept costs the bound.
* gap: with z the neuron's value where the bound is attained, the difference between its line and
  max(z, 0), times |a|: what relaxing this neuron costs the bound there. Ours.
* babsr: ``|max(s a b, (s - 1) a b) + min(a, 0) t|`` (Bunel et al. 2020, arXiv 1909.06588, section
  5.2: the estimated effect of fixing the neuron).

A neuron without a kink (sigmoid, tanh) has one score for all of these, its gap; `nonlinear` is
kfsb.

fsb and kfsb bound both children of the best candidates and decide by what comes out (De Palma et
al. 2021, arXiv 2104.06718; Wang et al. 2021, arXiv 2103.06624, appendix B): fsb takes candidates
from babsr, kfsb from gap and intercept, kfsb-intercept-only from intercept. Differs: published kfsb
takes babsr in place of gap; babsr judges a neuron at its layer's constant, not at a point that
counts (measured on cifar_base_kw img8194, one neuron at a time: gap alone 2 930 subproblems, babsr
alone more than 5 900; several at a time by gap instead of babsr: 1 308 instead of 3 022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from complete_verifier.bab.features import Features, FeatureSpan

Evaluate = Callable[[Tensor], Tensor]
"""Features ``[C, B]`` -> margins ``[C, 2, B]`` of the children so split, above and below."""


@dataclass(frozen=True)
class Scores:
    """Scores ``[B, T]`` of splittable features; -1 where a feature cannot be split."""

    babsr: Tensor
    intercept: Tensor
    gap: Tensor


def score(
    features: Features,
    coeffs: Mapping[int, Tensor],
    values: Mapping[int, Tensor],
    slopes: Mapping[int, Tensor],
    costs: Mapping[int, Tensor],
    open_features: Tensor,
) -> Scores:
    """Score every feature of every subproblem.

    Args:
        features: the numbering, with the root's bounds.
        coeffs: per activation ``[B, N]``, the coefficients of its output in the bound of the row
            closest to a proof.
        values: per activation ``[B, F]``, the features' values where that bound is attained.
        slopes: per activation ``[B, F]``, its lower slopes α.
        costs: per activation without a kink ``[B, F]``, the gap; it serves as every score.
        open_features: ``[B, T]`` bool.
    """
    babsr: list[Tensor] = []
    intercept: list[Tensor] = []
    gap: list[Tensor] = []
    for span in features.spans:
        if span.kink is None:
            for table in (babsr, intercept, gap):
                table.append(costs[span.activation])
            continue
        bounds = features.root[span.source].flatten()
        lower, upper = span.of(bounds.lower[0]), span.of(bounds.upper[0])
        slope = upper.clamp(min=0) / (upper.clamp(min=0) - lower.clamp(max=0)).clamp(min=1e-30)
        own = span.of(coeffs[span.activation])
        cost = own.clamp(max=0) * (-lower.clamp(max=0) * slope)
        constant = own * _constant_term(features, span)
        gain = torch.maximum(constant * slope, constant * (slope - 1))
        babsr.append((gain + cost).abs())
        intercept.append(cost.abs())
        value = values[span.activation]
        active = value.clamp(min=0)
        above = slope * (value - lower.clamp(max=0)) - active
        below = active - slopes[span.activation] * value
        gap.append(own.clamp(min=0) * below - own.clamp(max=0) * above)
    closed = ~open_features

    def joined(parts: list[Tensor]) -> Tensor:
        """Of all features; the parts are given up."""
        table = features.joined(parts)
        parts.clear()
        return table

    return Scores(
        joined(babsr).masked_fill_(closed, -1.0),
        joined(intercept).masked_fill_(closed, -1.0),
        joined(gap).clamp_(min=0).nan_to_num_(nan=0.0).masked_fill_(closed, -1.0),
    )


def candidates(scores: Scores, method: str, count: int, most: Callable[[int], int] = int) -> Tensor:
    """``[B, C]`` features worth trying; each once, then -1.

    Where two scores propose the same one, it comes at its first place.

    Args:
        most: of the numbers C of all ranks that try candidates together, the largest.
    """
    chosen = {
        "fsb": (scores.babsr,),
        "kfsb": (scores.gap, scores.intercept),
        "kfsb-intercept-only": (scores.intercept,),
    }[method]
    count = min(count, scores.babsr.shape[1])
    found = torch.cat([table.topk(count, dim=1).indices for table in chosen], dim=1)
    if len(chosen) == 1:
        return found
    same = found.unsqueeze(2) == found.unsqueeze(1)  # [B, C, C]
    again = same.tril(diagonal=-1).any(dim=2)
    order = again.to(torch.uint8).argsort(dim=1, stable=True)
    found = found.masked_fill(again, -1).gather(1, order)
    return found[:, : most(int((~again).sum(dim=1).amax()))]


def choose(
    scores: Scores,
    method: str,
    count: int,
    reduceop: str,
    evaluate: Evaluate,
    noise: Callable[[], Tensor],
    most: Callable[[int], int] = int,
) -> Tensor:
    """The feature ``[B]`` each subproblem is split at; every subproblem has an open one.

    Args:
        scores: of the subproblems.
        method: `bab.branching.method`.
        count: candidates per score.
        reduceop: min, max or mean over the two children.
        evaluate: margins of children, by one backward pass without optimisation.
        noise: for `random`, numbers ``[B, T]`` in [0, 1).
        most: see `candidates`.
    """
    if method == "random":
        drawn = noise().to(scores.babsr.device)
        return drawn.masked_fill(scores.babsr < 0, -1.0).argmax(dim=1)
    if method == "babsr":
        return scores.babsr.argmax(dim=1)
    if method == "intercept":
        return scores.intercept.argmax(dim=1)
    tried = candidates(scores, method, count, most)
    # A place that is left over tries the first candidate again; the first of equals is taken.
    tried = torch.where(tried < 0, tried[:, :1], tried)
    both = _REDUCE[reduceop](*evaluate(tried.T).unbind(dim=1)).T
    is_open = scores.babsr.gather(1, tried) >= 0
    best = both.masked_fill(~is_open | both.isnan(), -torch.inf).argmax(dim=1, keepdim=True)
    picked = tried.gather(1, best).squeeze(1)
    usable = scores.babsr.gather(1, picked.unsqueeze(1)).squeeze(1) >= 0
    return torch.where(usable, picked, scores.gap.argmax(dim=1))


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "mean": lambda one, other: (one + other) / 2,
}


def drawn_from_paths(path: Tensor, seed: int, count: int) -> Tensor:
    """``[B, count]`` numbers in [0, 1) that follow from subproblems' paths ``[B]`` and the seed.

    A subproblem draws the same whatever is beside it, on whichever rank. The generator is
    splitmix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators).
    """
    steps = torch.arange(1, count + 1, device=path.device) * -7046029254386353131
    bits = (path * 6364136223846793005 + seed).unsqueeze(1) + steps
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return _shifted(bits ^ _shifted(bits, 31), 11).double() * 2.0**-53


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shifted to the right, zeros coming in from the left."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def several(scores: Scores, first: Tensor, count: int) -> Tensor:
    """``[B, count]`` distinct features: the one chosen, then the best others by gap."""
    if count == 1:
        return first.unsqueeze(1)
    rest = scores.gap.scatter(1, first.unsqueeze(1), -torch.inf)
    return torch.cat([first.unsqueeze(1), rest.topk(count - 1, dim=1).indices], dim=1)


def _constant_term(features: Features, span: FeatureSpan) -> Tensor:
    """The constant of an affine layer's neurons; zero where the layer is something else."""
    operator = features.graph.nodes[span.source].operator
    offset = None
    if isinstance(operator, AffineOperator):
        offset = operator.offset(features.graph.weights)
    if offset is None or operator is None:
        return torch.zeros((), device=features.root[span.source].lower.device)
    return span.of(offset.expand(operator.output_shape).reshape(-1))
