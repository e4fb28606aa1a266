"""`--print_plan`: what each rank will hold, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from auto_LiRPA_patches.sharding.weights import ParameterShare
from complete_verifier.network_cache import NetworkCache
from complete_verifier.queries import queries
from complete_verifier.session import Session


def print_plan(session: Session) -> int:
    """Load the first instance's network and print the layout of its parameters; returns 0."""
    query = queries(session.config, session.loaded, session.scratch)[0]
    network = NetworkCache(session).network(query.onnx)
    if session.speaks:
        print("\n".join(plan_lines(session, network.graph.weights.share(), query.network)))
    return 0


def plan_lines(session: Session, shares: Sequence[ParameterShare], onnx: str) -> list[str]:
    """The plan as a table: parameter, shape, axis, bytes on this rank."""
    mesh = session.ranks.mesh
    layout = "1/P slices over data" if session.config.parallel.fsdp else "replicated"
    lines = [
        f"network: {onnx}",
        f"mesh: {mesh.world_size} rank(s), data {mesh.data} x tp {mesh.tp}",
        f"{'parameter':<48} {'shape':<20} {'layout':<22} {'bytes per rank':>14}",
    ]
    for share in shares:
        shape = "x".join(str(size) for size in share.shape) or "scalar"
        lines.append(f"{share.name:<48} {shape:<20} {layout:<22} {share.local_bytes:>14,}")
    total = sum(share.local_bytes for share in shares)
    lines.append(f"{'total':<48} {'':<20} {'':<22} {total:>14,}")
    return lines
