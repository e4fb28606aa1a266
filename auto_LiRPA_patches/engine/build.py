"""Make the engine's graph of an auto_LiRPA `BoundedModule`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from auto_LiRPA_patches.engine.graph import Graph, Node
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.engine.translators import translate
from auto_LiRPA_patches.engine.upstream_node import BuildOptions, UpstreamNode
from auto_LiRPA_patches.errors import UnsupportedOperatorError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.lent_weights import LentWeights
from auto_LiRPA_patches.sharding.weights import WeightSource


def build_graph(
    bounded_module: Any, weights: WeightSource, options: BuildOptions | None = None
) -> Graph:
    """Translate every node that depends on the input; hand every constant to `weights`.

    The result holds no reference to `bounded_module`: once the caller drops it and the module it
    was made from, parameters live in `weights` alone (on a sharded source, 1/P of each).

    Args:
        bounded_module: as `build_bounded_module` returns it, after its forward pass with batch 1.
        weights: registers parameters in one order on all ranks.
        options: precision, device, the choice of lower slopes, and who shares wide layers; None =
            float32 on the CPU, all layers whole.

    Raises:
        UnsupportedOperatorError: an operator, named with its node, has no sound bounds here; or
            the network has several inputs or outputs.
    """
    options = options or BuildOptions()
    if options.neuron_ranks.size > 1:
        # Which part of a layer this rank keeps follows from the whole graph.
        alone = replace(options, neuron_ranks=Communicator.single("tp"))
        whole = build_graph(bounded_module, LentWeights(), alone)
        ranks, refined = options.neuron_ranks, options.refine_split
        return split_neurons(whole, ranks, weights, refined=refined)
    bounds = _inputs_first(bounded_module._modules.values())
    perturbed = _perturbed(bounds)
    upstream = [UpstreamNode(bound, weights, options, perturbed) for bound in bounds]
    inputs = [node for node in upstream if node.is_input and node.bound.from_input is not False]
    if len(inputs) != 1:
        names = ", ".join(f'"{node.name}"' for node in inputs)
        raise UnsupportedOperatorError(f"expected one network input, found {len(inputs)}: {names}.")
    if len(bounded_module.output_name) != 1:
        raise UnsupportedOperatorError(
            f"expected one network output, found {len(bounded_module.output_name)}."
        )
    nodes = [Node(inputs[0].name, None, (), inputs[0].shape)]
    position = {inputs[0].name: 0}
    needed = _ancestors(bounded_module[bounded_module.final_name])
    for node in upstream:
        if node.is_input or not node.depends_on_input or node.name not in needed:
            continue
        sources = tuple(
            position[source.name] for source in node.operands if source.depends_on_input
        )
        values = list(sources)
        for step in translate(node):
            inputs_of_step = tuple(values[source] for source in step.sources)
            values.append(len(nodes))
            operator = step.operator
            nodes.append(Node(operator.name, operator, inputs_of_step, operator.output_shape))
        position[node.name] = values[-1]
    output = position.get(bounded_module.final_name)
    if output is None:
        raise UnsupportedOperatorError("the network's output does not depend on its input.")
    used, output = _used(nodes, output)
    return Graph(used, output, weights, options.precision, options.device)


def _used(nodes: Sequence[Node], output: int) -> tuple[tuple[Node, ...], int]:
    """The nodes that the output is computed from, in their order, and its new place.

    An operator that takes several of upstream's nodes together leaves some that nothing reads.
    """
    wanted = {0, output}
    for index in range(output, 0, -1):
        if index in wanted:
            wanted.update(nodes[index].inputs)
    place = {old: new for new, old in enumerate(sorted(wanted))}
    kept = (nodes[old] for old in sorted(wanted))
    moved = tuple(replace(n, inputs=tuple(place[source] for source in n.inputs)) for n in kept)
    return moved, place[output]


def _inputs_first(bounds: Iterable[Any]) -> list[Any]:
    """The nodes in their own order, but each behind its inputs: upstream adds parts at the end."""
    placed: dict[str, Any] = {}
    for bound in bounds:
        stack = [bound]
        while stack:
            missing = [source for source in stack[-1].inputs if source.name not in placed]
            stack.extend(missing)
            if not missing:
                placed[stack[-1].name] = stack[-1]
                stack.pop()
    return list(placed.values())


def _perturbed(bounds: list[Any]) -> frozenset[str]:
    """Names of the nodes whose value depends on the input; a shape does not, nor what it makes.

    Upstream counts them in. Shapes are those at batch size 1: everything here is of one input.
    """
    names: set[str] = set()
    for bound in bounds:
        kind = type(bound).__name__
        if kind == "BoundInput" or any(source.name in names for source in bound.inputs):
            if kind != "BoundShape":
                names.add(str(bound.name))
    return frozenset(names)


def _ancestors(final: Any) -> set[str]:
    """Names of all nodes the final one is computed from, itself included."""
    found: set[str] = set()
    stack = [final]
    while stack:
        bound = stack.pop()
        if bound.name not in found:
            found.add(bound.name)
            stack.extend(bound.inputs)
    return found
