"""Properties stated around one input: a box or a ball, and what the outputs must not do in it.

What is unsafe depends on the number of outputs, and for runner-up properties on the network's
scores; both are known once the network is read. So these are statements, of which `for_network`
makes the property itself.

Shape letters: I inputs (flat), O outputs (flat).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from complete_verifier.specification.ball import Ball
from complete_verifier.specification.clause import Clause
from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.region import Region
from complete_verifier.specification.specification import Specification

Scores = Callable[[np.ndarray], np.ndarray]
"""[I] float32 -> [O]: the network at one input."""

Demand = Literal["verified-acc", "runnerup", "clean-runnerup", "all-positive"]
"""What has to hold all over the input set.

verified-acc: the label's output is above every other one. runnerup: above the highest of the
others at the centre. clean-runnerup: the same for the class the network gives the centre, whatever
its label. all-positive: every output is above 0.
"""


class Statement(Protocol):
    """Anything that becomes a property once the network is known."""

    @property
    def source(self) -> str:
        """Names the property in messages and records."""

    def for_network(self, num_outputs: int, scores: Scores) -> Specification:
        """The property; may run the network at one input."""


@dataclass(frozen=True, eq=False)
class Robustness:
    """No input near `center` is unsafe.

    Args:
        center: [I], the input in question; read where the network's scores are asked for.
        region: the input set, without clauses.
        label: class of the centre; not read for clean-runnerup and all-positive.
        demand: see `Demand`.
        targets: classes that must stay below the label; None is all others (verified-acc only).
        source: names the property.

    An output that equals the label's counts as unsafe, as in VNN-LIB files of this kind.
    """

    center: np.ndarray
    region: Region
    label: int = -1
    demand: Demand = "verified-acc"
    targets: tuple[int, ...] | None = None
    source: str = "robustness"
    shape: tuple[int, ...] = ()
    """Of the centre as it was given, without batch; empty where it is not known."""

    num_outputs: int | None = None
    """What the network must have; None is any number."""

    def for_network(self, num_outputs: int, scores: Scores) -> Specification:
        """The property over `num_outputs` outputs.

        Raises:
            SpecificationError: a label or target is no output; a single output has no rival.
        """
        if self.num_outputs not in (None, num_outputs):
            raise SpecificationError(
                f"{self.source}: data.num_outputs is {self.num_outputs}, but the network has "
                f"{num_outputs} outputs. Correct it or remove it."
            )
        clauses = tuple(
            Clause(coefficients=row[None], rhs=np.zeros(1))
            for row in self._rows(num_outputs, scores)
        )
        region = replace(self.region, clauses=clauses)
        return Specification((region,), self.source, region.num_inputs, num_outputs)

    def _rows(self, num_outputs: int, scores: Scores) -> np.ndarray:
        """[clauses, O]: unsafe where one of ``row @ y`` is at most 0."""
        identity = np.eye(num_outputs)
        if self.demand == "all-positive":
            return identity
        label, targets = self._label_and_targets(num_outputs, scores)
        for index in (label, *targets):
            if not 0 <= index < num_outputs:
                raise SpecificationError(
                    f"{self.source}: expected classes of 0 to {num_outputs - 1}, got {index}. "
                    "Check labels and network."
                )
        if not targets:
            raise SpecificationError(
                f"{self.source}: the network has {num_outputs} output(s), so no class competes "
                f"with {label}. State the property as a box with constraints of your own."
            )
        return identity[label] - identity[list(targets)]

    def _label_and_targets(self, num_outputs: int, scores: Scores) -> tuple[int, tuple[int, ...]]:
        if self.demand == "verified-acc":
            every = tuple(c for c in range(num_outputs) if c != self.label)
            return self.label, every if self.targets is None else self.targets
        found = np.asarray(scores(self.center.astype(np.float32)), dtype=np.float64).reshape(-1)
        label = int(found.argmax()) if self.demand == "clean-runnerup" else self.label
        others = [c for c in np.argsort(-found, kind="stable").tolist() if c != label]
        return label, tuple(others[:1])


def linf(
    x: object,
    eps: float | Sequence[float] | np.ndarray,
    label: int,
    *,
    lowest: object = -np.inf,
    highest: object = np.inf,
    targets: Sequence[int] | None = None,
    source: str = "",
) -> Robustness:
    """``|x' - x| <= eps`` in every coordinate, cut off at `lowest` and `highest`: same class.

    Args:
        x: an input, any shape of I numbers (array, tensor or list).
        eps: one number, or one per coordinate, in the units of `x`.
        label: the class that has to stay the highest output.
        lowest, highest: limits of valid inputs, one number or one per coordinate (0 and 1 for
            images that are not normalised).
        targets: compare with these classes only.
        source: names the property in messages.

    Raises:
        SpecificationError: eps is negative, or a number is not finite.
    """
    center = flat(x)
    radius = np.broadcast_to(flat(eps), center.shape)
    if not (radius >= 0).all():
        raise SpecificationError("eps: expected numbers of at least 0, got a negative one or NaN")
    return Robustness(
        center=center,
        shape=tuple(np.shape(plain(x))),
        region=lp_region(center, radius, np.inf, lowest=flat(lowest), highest=flat(highest)),
        label=int(label),
        targets=None if targets is None else tuple(int(target) for target in targets),
        source=source or f"linf ball of radius {float(radius.max(initial=0)):g}, label {label}",
    )


def lp_region(
    center: np.ndarray,
    eps: np.ndarray | float,
    norm: float,
    *,
    scale: np.ndarray | float = 1.0,
    lowest: np.ndarray | float = -np.inf,
    highest: np.ndarray | float = np.inf,
) -> Region:
    """The inputs ``center + d`` with ``|| scale * d ||_norm <= eps`` between two limits.

    Args:
        center: [I] float64.
        eps: radius; for norm inf also one per coordinate, [I].
        norm: 1, 2 or inf.
        scale: what a coordinate counts for; the standard deviation where `eps` is in the units of
            the data and the network reads data divided by it.
        lowest, highest: limits of valid inputs.

    Raises:
        SpecificationError: another norm, or a radius per coordinate for a norm other than inf.
    """
    radius = np.asarray(eps, dtype=np.float64)
    weights = np.broadcast_to(np.asarray(scale, dtype=np.float64), center.shape)
    if norm == np.inf:
        ball = None
        lower, upper = center - radius / weights, center + radius / weights
    elif radius.size != 1:
        raise SpecificationError(f"norm {norm:g}: expected one radius, got {radius.size}")
    else:
        ball = Ball(center, float(radius.reshape(-1)[0]), norm, weights)
        lower, upper = ball.box()
    return Region(
        lower=np.maximum(lower, lowest), upper=np.minimum(upper, highest), clauses=(), ball=ball
    )


def flat(values: object) -> np.ndarray:
    """[I] float64 of an array, tensor, list or number."""
    return np.asarray(plain(values), dtype=np.float64).reshape(-1)


def plain(values: object) -> Any:
    """What numpy can read of an array, tensor, list or number."""
    detach = getattr(values, "detach", None)
    return values if detach is None else detach().cpu()
