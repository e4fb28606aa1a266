"""Every `auto` is settled by one pure function of the config and of the machine's facts."""

from __future__ import annotations

import pytest

from complete_verifier.config import Config, ConfigError, Facts, resolve
from complete_verifier.config.keys import build_config, flatten

CPU = Facts(cuda_available=False)
CUDA = Facts(cuda_available=True)


def _values(notes) -> dict[str, object]:
    return {note.key: note.value for note in notes}


def test_default_config_on_a_machine_without_cuda() -> None:
    config, notes = resolve(Config(), CPU)
    assert _values(notes) == {
        "general.device": "cpu",
        "parallel.backend": "gloo",
        "parallel.shard_specs": False,
        "parallel.shard_domains": False,
        "solver.init_bound_prop_method": "alpha-crown",
    }
    assert all(note.reason for note in notes)
    assert {key: flatten(config)[key] for key in _values(notes)} == _values(notes)


def test_default_config_with_cuda() -> None:
    config, _ = resolve(Config(), CUDA)
    assert (config.general.device, config.parallel.backend) == ("cuda", "nccl")


def test_the_original_is_left_as_it_was_and_the_result_is_settled() -> None:
    config, _ = resolve(Config(), CPU)
    assert Config().parallel.backend == "auto"
    again, notes = resolve(config, CPU)
    assert again == config and notes == ()


def test_cuda_that_was_asked_for_is_not_exchanged() -> None:
    origins = {"general.device": "x.yaml:2"}
    with pytest.raises(ConfigError) as caught:
        resolve(Config(), CPU, origins)
    assert str(caught.value) == (
        "general.device: expected a CUDA device, got none on this machine (x.yaml:2). "
        "Use --device cpu."
    )


def test_nccl_without_cuda_is_refused() -> None:
    config = build_config({"parallel.backend": "nccl", "general.device": "cpu"})
    with pytest.raises(ConfigError) as caught:
        resolve(config, CUDA, {"parallel.backend": "--backend"})
    assert str(caught.value) == (
        "parallel.backend: nccl needs CUDA, but the device is cpu (--backend). Use --backend gloo."
    )


def test_world_size_must_be_what_is_started() -> None:
    config = build_config({"parallel.world_size": 3})
    with pytest.raises(ConfigError) as caught:
        resolve(config, Facts(cuda_available=False, num_ranks=2), {})
    assert str(caught.value) == (
        "parallel.world_size: expected 3 ranks, got 2. Start them with torchrun "
        "--nproc_per_node 3, or remove the key to take what is started."
    )
    resolve(config, Facts(cuda_available=False, num_ranks=3))


@pytest.mark.parametrize(("tp", "num_ranks"), [(True, 1), (False, 2)])
def test_tensor_parallel_degree_one_is_settled(tp: bool, num_ranks: int) -> None:
    config = build_config({"parallel.tp": tp})
    config, _ = resolve(config, Facts(cuda_available=False, num_ranks=num_ranks))
    assert config.parallel.tp == 1 and not isinstance(config.parallel.tp, bool)


def test_a_tensor_parallel_degree_divides_the_ranks() -> None:
    config = build_config({"parallel.tp": True, "solver.bound_prop_method": "forward+crown"})
    config, _ = resolve(config, Facts(cuda_available=False, num_ranks=3))
    assert config.parallel.tp == 3
    assert config.solver.bound_prop_method == config.solver.init_bound_prop_method == "crown"
    config = build_config({"parallel.tp": 2})
    with pytest.raises(ConfigError) as caught:
        resolve(config, Facts(cuda_available=False, num_ranks=3), {"parallel.tp": "--tp"})
    assert str(caught.value) == (
        "parallel.tp: expected a divisor of the 3 rank(s) that are started, got 2 (--tp). Start a "
        "multiple of 2 ranks with torchrun, or choose a tp that divides them."
    )


@pytest.mark.parametrize(
    ("num_ranks", "tp", "given", "expected"),
    [
        (1, 1, "auto", False),
        (2, 1, "auto", True),
        (4, 2, "auto", True),
        (2, 2, "auto", False),
        (2, True, "auto", False),
        (2, 1, False, False),
        (1, 1, True, True),
    ],
)
@pytest.mark.parametrize("name", ["shard_specs", "shard_domains"])
def test_rows_and_subproblems_are_shared_wherever_ranks_can(
    num_ranks: int, tp: int | bool, given: bool | str, expected: bool, name: str
) -> None:
    config = build_config({"parallel.tp": tp, f"parallel.{name}": given})
    config, _ = resolve(config, Facts(cuda_available=False, num_ranks=num_ranks))
    assert getattr(config.parallel, name) is expected


def test_first_method_follows_the_method() -> None:
    config, _ = resolve(build_config({"solver.bound_prop_method": "crown"}), CPU)
    assert config.solver.init_bound_prop_method == "crown"
