"""What one of upstream's nodes becomes: an operator, or several in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from auto_LiRPA_patches.engine.upstream_node import UpstreamNode
from auto_LiRPA_patches.operators.base import Operator, Shape


@dataclass(frozen=True)
class Step:
    """One operator and what it reads.

    Attributes:
        operator: the operator.
        sources: for each of its inputs, k < n = the node's k-th operand that depends on the input
            (of n), n + k = the result of the k-th step.
    """

    operator: Operator
    sources: tuple[int, ...]


Translator = Callable[[UpstreamNode], Operator | tuple[Step, ...]]
"""What a node becomes: one operator, or steps whose last result is the node's value.

An empty tuple stands for the identity: the value is that of the one operand that depends on the
input.
"""


@dataclass
class Chain:
    """Collects the steps of one node; a value is a number as in `Step.sources`."""

    node: UpstreamNode
    steps: list[Step] = field(default_factory=list)

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the operands that depend on the input, then of each step's result."""
        return [*perturbed_shapes(self.node), *(step.operator.output_shape for step in self.steps)]

    def shape(self, value: int) -> Shape:
        """The shape of a value."""
        return self.shapes[value]

    def name(self, part: str) -> str:
        """A name for an inner step."""
        return f"{self.node.name}/{part}"

    def add(self, operator: Operator, *sources: int) -> int:
        """Append one step; returns its value."""
        self.steps.append(Step(operator, sources))
        return len(self.shapes) - 1

    def finish(self) -> tuple[Step, ...]:
        """All steps; the last one's result is the node's value.

        Raises:
            UnsupportedOperatorError: it has another shape than the node.
        """
        if self.shapes[-1] != self.node.shape:
            self.node.refuse(f"its parts end in shape {list(self.shapes[-1])}")
        return tuple(self.steps)


def perturbed_shapes(node: UpstreamNode) -> tuple[Shape, ...]:
    """Shapes of the operands that depend on the input, without batch."""
    return tuple(source.shape for source in node.operands if source.depends_on_input)


def require_constants(node: UpstreamNode, *positions: int) -> None:
    """Refuse the node if one of these operands depends on the input."""
    for position in positions:
        if position < len(node.operands) and node.operands[position].depends_on_input:
            node.refuse(f"operand {position} depends on the network's input")


def value_axis(node: UpstreamNode, axis: int, rank_with_batch: int) -> int:
    """An axis counted with the batch, as one counted without; the batch axis is refused."""
    axis = axis + rank_with_batch if axis < 0 else axis
    if axis == 0:
        node.refuse("it acts on the batch axis")
    return axis - 1
