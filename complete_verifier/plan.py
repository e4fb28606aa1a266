"""`--print_plan`: what each rank will hold, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.base import Operator, Shape
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.linear_tp import BoundLinearTPCol, BoundLinearTPRow
from auto_LiRPA_patches.sharding.matrix_blocks import matrix_name
from auto_LiRPA_patches.sharding.slices import Slices
from auto_LiRPA_patches.sharding.weights import ParameterShare
from complete_verifier.network_cache import NetworkCache
from complete_verifier.queries import queries
from complete_verifier.session import Session


def print_plan(session: Session) -> int:
    """Load the first instance's network and print how it is laid out; returns 0."""
    query = queries(session.config, session.loaded, session.scratch)[0]
    network = NetworkCache(session).network(query.onnx)
    if session.speaks:
        print("\n".join(plan_lines(session, network.graph, query.network)))
    return 0


def plan_lines(session: Session, graph: Graph, onnx: str) -> list[str]:
    """The plan as a table: node, shape, axis, bytes of parameters on this rank."""
    mesh = session.ranks.mesh
    lines = [
        f"network: {onnx}",
        f"mesh: {mesh.world_size} rank(s), data {mesh.data} x tp {mesh.tp}",
        _line("node or parameter", "shape", "layout", "bytes per rank"),
    ]
    slices = ", 1/P slices over data" if session.config.parallel.fsdp else ""
    shares = graph.weights.share()
    for index, node in enumerate(graph.nodes):
        split = graph.neurons.split.get(index)
        shape = node.shape if split is None else (split.total,)
        layout = "replicated" if split is None else "neurons over tp"
        lines.append(_line(node.name, _text(shape), layout, ""))
        for name, whole, axis, held in _parameters(node.operator, split, shares):
            lines.append(_line(f"  {name}", _text(whole), f"{axis}{slices}", f"{held:,}"))
    lines.append(_line("total", "", "", f"{graph.weights.local_bytes:,}"))
    return lines


def _parameters(
    operator: Operator | None, split: Slices | None, shares: Sequence[ParameterShare]
) -> Iterator[tuple[str, Shape, str, int]]:
    """Of each parameter of a node its name, the whole's shape, what is split, and bytes held."""
    if isinstance(operator, Linear):
        yield _matrix(operator, shares)
    matrix = operator.weight if isinstance(operator, Linear) else ()
    for handle in () if operator is None else operator.handles:
        share = shares[handle.index]
        if handle in matrix:
            continue
        if isinstance(operator, BoundLinearTPCol):
            yield share.name, (operator.slices.total,), "columns over tp", share.local_bytes
        elif split is not None and share.shape == (split.own,):
            yield share.name, (split.total,), "neurons over tp", share.local_bytes
        else:
            yield share.name, share.shape, "replicated", share.local_bytes


def _matrix(layer: Linear, shares: Sequence[ParameterShare]) -> tuple[str, Shape, str, int]:
    """All blocks of a layer's matrix together."""
    blocks = [shares[handle.index] for handle in layer.weight]
    shape = sum(block.shape[0] for block in blocks), blocks[0].shape[1]
    held = sum(block.local_bytes for block in blocks)
    name = matrix_name(layer.weight)
    if isinstance(layer, BoundLinearTPCol):
        return name, _widened(shape, layer.transposed, layer.slices.total), "columns over tp", held
    if isinstance(layer, BoundLinearTPRow):
        return name, _widened(shape, not layer.transposed, layer.slices.total), "rows over tp", held
    return name, shape, "replicated", held


def _widened(shape: Shape, second: bool, size: int) -> Shape:
    axis = int(second)
    return (*shape[:axis], size, *shape[axis + 1 :])


def _line(name: str, shape: str, layout: str, size: str) -> str:
    return f"{name:<48} {shape:<20} {layout:<38} {size:>14}".rstrip()


def _text(shape: Shape) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
