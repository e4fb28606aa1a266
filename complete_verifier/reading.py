"""Read what one instance is about: its network and its property, the same on all ranks."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import torch

from auto_LiRPA_patches.errors import RankMismatchError, VerifierError
from auto_LiRPA_patches.sharding.collectives import Communicator
from complete_verifier.model.network import Network
from complete_verifier.network_cache import NetworkCache
from complete_verifier.queries import Query
from complete_verifier.specification import Specification, SpecificationError, read_vnnlib

logger = logging.getLogger(__name__)


def read_instance(
    query: Query, networks: NetworkCache, world: Communicator
) -> tuple[Network, Specification]:
    """Network and property of `query`: all ranks get the same ones, or all fail alike.

    A rank that failed alone would go on to the next instance and meet the others there, in
    collectives that are about this one.

    Raises:
        ModelError, UnsupportedOperatorError: the network cannot be loaded.
        SpecificationError: the property cannot be read, or is about another network.
        RankMismatchError: only some ranks fail, or they read different properties.
    """
    what = f"what was read for instance {query.index}"
    try:
        network = networks.network(query.onnx)
        specification = _property(query, network)
    except RankMismatchError:
        raise
    except VerifierError as error:
        world.agree_same(what, str(error))
        raise
    world.agree_same(what, f"a property with SHA-256 {_digest(specification)}")
    return network, specification


def _property(query: Query, network: Network) -> Specification:
    specification = _stated(query, network)
    for what, stated, own in (
        ("inputs", specification.num_inputs, network.num_inputs),
        ("outputs", specification.num_outputs, network.num_outputs),
    ):
        if stated != own:
            raise SpecificationError(
                f"{query.property}: states {stated} {what}, but the network {query.network} has "
                f"{own}. "
                "Check that the property belongs to this network."
            )
    if query.rhs_offset:
        specification = specification.shifted(query.rhs_offset)
    if specification.is_empty:
        logger.warning("%s: the input set is empty, so the property holds of it", query.property)
    return specification


def _stated(query: Query, network: Network) -> Specification:
    """The property of a file, or of a statement, which may want to know the network's scores."""
    if isinstance(query.vnnlib, Path):
        return read_vnnlib(query.vnnlib)

    def scores(point: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            outputs: np.ndarray = network.forward(torch.from_numpy(point)[None])[0].cpu().numpy()
        return outputs

    return query.vnnlib.for_network(network.num_outputs, scores)


def _digest(specification: Specification) -> str:
    digest = hashlib.sha256()
    for region in specification.regions:
        for array in (region.lower, region.upper, region.lower_open, region.upper_open):
            digest.update(array.tobytes())
        if region.ball is not None:
            ball = region.ball
            digest.update(repr((ball.radius, ball.norm)).encode())
            digest.update(ball.center.tobytes() + ball.weights.tobytes())
        digest.update(repr(region.windowed).encode())
        for clause in region.clauses:
            for array in (clause.coefficients, clause.rhs, clause.strict):
                digest.update(array.tobytes())
    return digest.hexdigest()
