"""Branch and bound on activations against the exact minimum of small ReLU networks.

The threshold is put just below and just above the true minimum, so that a wrong answer on either
side shows. A failure is a false proof, a missed violation, or work that depends on the run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_minimum import affine_layers, minimum
from torch import nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import activation
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import at_most, linear, mlp, network_of, region

SETTINGS = BabSettings(
    batch_size=32, beta=BetaOptions(iterations=10, alpha_rate=0.1, beta_rate=0.1), reduceop="max"
)
CROWN = BoundSettings(method="crown")


def _confirm(network: Network):
    def confirm(where: Region, point: np.ndarray) -> Counterexample | None:
        with torch.no_grad():
            outputs = network.forward(torch.from_numpy(point).unsqueeze(0))[0].numpy()
        if not (where.contains_float32(point) and where.violated_by(outputs)):
            return None
        return Counterexample(point, outputs)

    return confirm


def decide(
    network: Network,
    where: Region,
    settings: BabSettings = SETTINGS,
    bounds: BoundSettings = CROWN,
    **options: object,
) -> BabOutcome:
    """The region's outcome; what bounds alone prove counts as proven."""
    found = verify_region(network, where, bounds)
    if found.proven:
        return BabOutcome(ending=Ending.PROVEN, reason="bounds")
    assert found.root is not None
    context = BabContext(
        network=network,
        region=where,
        bounds=BoundOptions(**options),  # type: ignore[arg-type]
        confirm=_confirm(network),
    )
    return activation_branch_and_bound(found.root, context, settings)


class Residual(nn.Module):
    """Two branches and a sum, 3 inputs, 2 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(self.left(h) + h))


def _seeded(build, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    return module


@pytest.mark.parametrize("method", ["kfsb", "fsb", "babsr", "intercept", "random"])
@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_right_just_beside_the_true_minimum(seed: int, method: str) -> None:
    module = _seeded(lambda: mlp(3, 10, 8, 2), seed)
    network = network_of(module, (3,))
    low, high = -np.ones(3), np.ones(3)
    row = np.array([1.0, -1.0])
    truth = minimum(affine_layers(module, (3,)), row, low, high)
    settings = replace(SETTINGS, method=method)
    gap = 1e-3 * max(1.0, abs(truth))
    holds = decide(network, region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth - gap)), settings)
    assert holds.ending is Ending.PROVEN
    violated = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth + gap))
    broken = decide(network, violated, settings)
    assert broken.ending is Ending.VIOLATED
    assert broken.counterexample is not None


@pytest.mark.parametrize("seed", range(4))
def test_residual_networks_are_decided_as_dense_sampling_says(seed: int) -> None:
    network = network_of(_seeded(Residual, seed), (3,))
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 41)] * 3)
    sampled = float((network.forward(grid)[:, 0]).detach().min())
    for threshold in np.linspace(sampled - 1.0, sampled + 0.3, 8):
        found = decide(network, region([-1] * 3, [1] * 3, at_most([1.0, 0.0], float(threshold))))
        if threshold > sampled:
            assert found.ending is not Ending.PROVEN
        assert found.ending in (Ending.PROVEN, Ending.VIOLATED)


def test_a_lost_child_would_prove_what_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug to be caught: every second child is forgotten."""
    whole = DomainBatch.concatenate
    proven = 0
    for seed in range(6):
        module = _seeded(lambda: mlp(3, 10, 8, 2), seed)
        network = network_of(module, (3,))
        truth = minimum(affine_layers(module, (3,)), np.array([1.0, -1.0]), -np.ones(3), np.ones(3))
        where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth + 1e-3))
        blind = replace(SETTINGS, method="babsr")
        monkeypatch.setattr(BabContext, "try_points", lambda self, points: None)
        assert decide(network, where, blind, out_of_time=_after(20)).ending is not Ending.PROVEN
        with monkeypatch.context() as patch:
            patch.setattr(
                activation.DomainBatch, "concatenate", staticmethod(lambda parts: whole(parts[:1]))
            )
            outcome = decide(network, where, blind, out_of_time=_after(20))
            proven += outcome.ending is Ending.PROVEN
    assert proven > 0


def _after(rounds: int):
    """A clock that runs out at the given question."""
    asked = iter(range(10**9))
    return lambda *_: next(asked) > rounds * 50


def test_a_boundary_value_is_a_violation_and_a_fixed_leaf_is_evaluated() -> None:
    """Field case 10: 2 inputs, 1 ReLU, range [-0.5, 0.5], property Y_0 >= 0 can be met."""
    module = nn.Sequential(linear([[1.0, 1.0]], [0.0]), nn.ReLU(), linear([[-0.5]], [0.5]))
    network = network_of(module, (2,))
    where = region([-1, -1], [1, 1], at_most([-1.0], 0.0))  # -y <= 0
    found = decide(network, where)
    assert found.ending is Ending.VIOLATED
    out_of_reach = region([-1, -1], [1, 1], at_most([-1.0], -0.51))  # y >= 0.51
    assert decide(network, out_of_reach).ending is Ending.PROVEN


@pytest.mark.parametrize(("bias", "ending"), [(0.0, Ending.VIOLATED), (1.0, Ending.PROVEN)])
def test_minus_relu_at_the_end(bias: float, ending: Ending) -> None:
    """Field case 11: 1-6-6-1 ending in -ReLU; Y_0 >= 0 holds exactly where the ReLU is inactive."""
    torch.manual_seed(0)
    hidden = mlp(1, 6, 6, 1)
    module = nn.Sequential(
        *hidden, linear([[0.1]], [bias - 0.2]), nn.ReLU(), linear([[-1.0]], [0.0])
    )
    with torch.no_grad():
        values = module[:-2](torch.linspace(-1, 1, 2001)[:, None])
    expected = ending if float(values.min()) > 0 or ending is Ending.VIOLATED else Ending.VIOLATED
    if bias == 0.0:
        assert float(values.min()) <= 0
    found = decide(network_of(module, (1,)), region([-1], [1], at_most([-1.0], 0.0)))
    assert found.ending is expected


def test_nothing_to_split_is_handled_where_the_last_layer_is_zero() -> None:
    """Field case 30."""
    module = nn.Sequential(*mlp(2, 5, 5, 1)[:-1], linear([[0.0] * 5], [0.25]))
    network = network_of(module, (2,))
    assert decide(network, region([-1] * 2, [1] * 2, at_most([1.0], 0.2))).ending is Ending.PROVEN
    broken = decide(network, region([-1] * 2, [1] * 2, at_most([1.0], 0.25)))
    assert broken.ending is Ending.VIOLATED


def test_conjunctions_and_disjunctions_are_decided_clause_by_clause() -> None:
    module = _seeded(lambda: mlp(2, 8, 6, 2), 5)
    network = network_of(module, (2,))
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 301)] * 2)
    y = network.forward(grid).detach().numpy()
    middle = float(np.median(y[:, 0]))
    both = at_most([1.0, 0.0], middle), at_most([-1.0, 0.0], -middle - 0.05)
    empty = Clause(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([middle, -middle - 0.05]))
    assert decide(network, region([-1] * 2, [1] * 2, empty)).ending is Ending.PROVEN
    assert decide(network, region([-1] * 2, [1] * 2, *both)).ending is Ending.VIOLATED


def test_two_synchronous_runs_do_the_same_work_with_the_same_bits() -> None:
    module = _seeded(lambda: mlp(4, 16, 12, 2), 1)
    network = network_of(module, (4,))
    truth = minimum(affine_layers(module, (4,)), np.array([1.0, -1.0]), -np.ones(4), np.ones(4))
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], truth - 1e-2))
    settings = replace(SETTINGS, synchronous=True, max_iterations=4, batch_size=8)
    one, two = (decide(network, where, settings) for _ in range(2))
    assert one == two
    assert one.domains_visited > 0


@pytest.mark.parametrize("worst_first", [True, False])
def test_limits_end_the_run_without_a_proof(worst_first: bool) -> None:
    module = _seeded(lambda: mlp(4, 24, 24, 2), 2)
    network = network_of(module, (4,))
    truth = minimum(affine_layers(module, (4,)), np.array([1.0, -1.0]), -np.ones(4), np.ones(4))
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], truth - 1e-4))
    settings = replace(SETTINGS, batch_size=4, worst_first=worst_first)
    settings = replace(settings, beta=BetaOptions(iterations=1))
    few = decide(network, where, replace(settings, max_iterations=2))
    assert (few.ending, few.rounds) == (Ending.MAX_ITERATIONS, 2)
    narrow = decide(network, where, replace(settings, max_domains=5))
    assert narrow.ending is Ending.MAX_DOMAINS
    assert narrow.domains_left > 5
    assert decide(network, where, settings, out_of_time=lambda *_: True).ending is Ending.TIMEOUT
    assert np.isfinite(narrow.lower_bound)


def test_small_batches_in_memory_give_the_same_answer() -> None:
    module = _seeded(lambda: mlp(3, 10, 8, 2), 3)
    network = network_of(module, (3,))
    truth = minimum(affine_layers(module, (3,)), np.array([1.0, -1.0]), -np.ones(3), np.ones(3))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth - 1e-2))
    assert decide(network, where, memory_bytes=1).ending is Ending.PROVEN


def test_a_root_without_optimised_alpha_branches_too() -> None:
    """Field case 29: alpha-crown.alpha false, then kfsb."""
    module = _seeded(lambda: mlp(3, 10, 8, 2), 4)
    network = network_of(module, (3,))
    truth = minimum(affine_layers(module, (3,)), np.array([1.0, -1.0]), -np.ones(3), np.ones(3))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth - 1e-2))
    for bounds in (BoundSettings(alpha=AlphaOptions(iterations=0)), BoundSettings(method="ibp")):
        assert decide(network, where, bounds=bounds).ending is Ending.PROVEN
