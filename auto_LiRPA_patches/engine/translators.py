"""From auto_LiRPA's nodes to the engine's operators: the registry of forms that have bounds.

A form that is not known to be bounded soundly is refused by name; nothing falls through.
"""

from __future__ import annotations

from auto_LiRPA_patches.engine.translation.affine import AFFINE
from auto_LiRPA_patches.engine.translation.movement import MOVEMENT
from auto_LiRPA_patches.engine.translation.nonlinear import NONLINEAR
from auto_LiRPA_patches.engine.translation.steps import Step, Translator, perturbed_shapes
from auto_LiRPA_patches.engine.upstream_node import UpstreamNode

TRANSLATORS: dict[str, Translator] = {**AFFINE, **MOVEMENT, **NONLINEAR}


def bounded_operators() -> tuple[str, ...]:
    """Names of the graph operators that have bounds in some form, sorted."""
    return tuple(sorted(kind.removeprefix("Bound") for kind in TRANSLATORS))


def translate(node: UpstreamNode) -> tuple[Step, ...]:
    """The engine's operators for one of upstream's nodes, in order; the last gives its value.

    Raises:
        UnsupportedOperatorError: no sound bounds are known for it; names node and operator.
    """
    translator = TRANSLATORS.get(node.kind)
    if translator is None:
        node.refuse(f"it has no bounds here (known: {', '.join(bounded_operators())})")
    result = translator(node)
    if isinstance(result, tuple):
        return result
    return (Step(result, tuple(range(len(perturbed_shapes(node))))),)
