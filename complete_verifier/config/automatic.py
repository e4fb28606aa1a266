"""What `general.complete_verifier: auto` chooses once the network is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from complete_verifier.config.keys import with_values
from complete_verifier.config.resolve import Resolved
from complete_verifier.config.root import Config

# Measured on ACAS Xu, CPU seconds with start-up, chosen so | left at the other defaults: net 1_1
# property 1 5.1 | 7.9, property 3 6.2 | 10.4, property 5 6.0 | 8.3.
_FOR_FEW_INPUTS: Mapping[str, Any] = {
    "solver.bound_prop_method": "forward+crown",
    "solver.init_bound_prop_method": "forward+crown",
    "solver.batch_size": 2048,
    "bab.branching.method": "sb",
    "bab.branching.input_split.sb_coeff_thresh": 0.1,
}
_METHODS = frozenset({"solver.bound_prop_method", "solver.init_bound_prop_method"})


def automatic(
    config: Config, given: Mapping[str, str], num_inputs: int
) -> tuple[Config, tuple[Resolved, ...]]:
    """Settle how a network with `num_inputs` inputs is branched on.

    Under `auto`, inputs are split where they are few; then small boxes with cheap bounds beat
    tight ones. Only keys that nobody gave are chosen.

    Args:
        config: of `resolve`.
        given: the keys that were set, and where.
        num_inputs: of the network.
    """
    split = config.bab.branching.input_split
    if config.general.complete_verifier != "auto" or num_inputs > split.input_dim_threshold:
        return config, ()
    chosen = {key: value for key, value in _FOR_FEW_INPUTS.items() if key not in given}
    if int(config.parallel.tp) > 1:
        # Forward bounds are not split by neuron.
        chosen |= dict.fromkeys(chosen.keys() & _METHODS, "crown")
    if "solver.bound_prop_method" in given:
        chosen.pop("solver.init_bound_prop_method", None)
    reason = f"auto: the network has {num_inputs} inputs, which are split"
    notes = tuple(Resolved(key, value, reason) for key, value in chosen.items())
    return with_values(config, chosen), notes
