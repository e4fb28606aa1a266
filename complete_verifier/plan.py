"""`--print_plan`: what each rank will hold, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.base import Operator, Shape
from auto_LiRPA_patches.operators.linear_tp import BoundLinearTPCol, BoundLinearTPRow
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
        for share, whole, axis in _parameters(node.operator, split, shares):
            size = f"{share.local_bytes:,}"
            lines.append(_line(f"  {share.name}", _text(whole), f"{axis}{slices}", size))
    lines.append(_line("total", "", "", f"{graph.weights.local_bytes:,}"))
    return lines


def _parameters(
    operator: Operator | None, split: Slices | None, shares: Sequence[ParameterShare]
) -> Iterator[tuple[ParameterShare, Shape, str]]:
    """What this rank holds of each parameter of a node, the whole's shape, and what is split."""
    for handle in () if operator is None else operator.handles:
        share = shares[handle.index]
        if isinstance(operator, BoundLinearTPCol):
            axis = int(operator.transposed and handle == operator.weight)
            yield share, _widened(share.shape, axis, operator.slices.total), "columns over tp"
        elif isinstance(operator, BoundLinearTPRow) and handle == operator.weight:
            axis = int(not operator.transposed)
            yield share, _widened(share.shape, axis, operator.slices.total), "rows over tp"
        elif split is not None and share.shape == (split.own,):
            yield share, (split.total,), "neurons over tp"
        else:
            yield share, share.shape, "replicated"


def _widened(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _line(name: str, shape: str, layout: str, size: str) -> str:
    return f"{name:<48} {shape:<20} {layout:<38} {size:>14}".rstrip()


def _text(shape: Shape) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
