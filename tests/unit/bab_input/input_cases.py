"""Regions to split, and the run around them."""

from __future__ import annotations

import numpy as np
import torch
from exact_minimum import affine_layers, minimum

from auto_LiRPA_patches.engine.options import BoundOptions
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.outcome import BabOutcome
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import mlp, network_of

NO_ATTACK = InputSplitSettings(adv_check=-1)
FEW_ROUNDS = BabSettings(batch_size=64, max_iterations=60)


def context_of(network: Network, where: Region, bounds: BoundOptions | None = None) -> BabContext:
    """A run without a file: a candidate is confirmed by the network itself."""

    def confirm(region: Region, point: np.ndarray) -> Counterexample | None:
        with torch.no_grad():
            values = network.forward(torch.from_numpy(point).unsqueeze(0))[0].numpy()
        if not region.contains_float32(point) or not region.violated_by(values):
            return None
        return Counterexample(inputs=point, outputs=values.astype(np.float32))

    return BabContext(
        network=network, region=where, bounds=bounds or BoundOptions(), confirm=confirm
    )


def decide(
    network: Network,
    where: Region,
    settings: InputSplitSettings = NO_ATTACK,
    bab: BabSettings = FEW_ROUNDS,
    bounds: BoundOptions | None = None,
) -> BabOutcome:
    return input_branch_and_bound(context_of(network, where, bounds), settings, bab)


def problem(seed: int, gap: float) -> tuple[Network, Region]:
    """A 2-input ReLU net and a clause whose exact smallest margin is `gap` (up to 1e-5)."""
    torch.manual_seed(seed)
    module = mlp(2, 12, 10, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.5)
    generator = np.random.default_rng(seed)
    center, radius = generator.normal(size=2), generator.uniform(1.0, 2.0, size=2)
    low = (center - radius).astype(np.float32).astype(np.float64)
    high = (center + radius).astype(np.float32).astype(np.float64)
    functional = generator.normal(size=2)
    best = minimum(affine_layers(module, (2,)), functional, low, high)
    network = network_of(module.float(), (2,))
    return network, Region(low, high, (Clause(functional[None], np.array([best - gap])),))
