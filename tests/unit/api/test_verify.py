"""`verify` from Python: files and modules, typed results, and what is refused.

A failure of the first group means wrong verdicts for whoever calls the verifier from a program.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from complete_verifier import Config, Specification, Verdict, Verifier, verify
from complete_verifier.config import ConfigError
from complete_verifier.model.errors import ModelError
from complete_verifier.specification import SpecificationError

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "exp_configs" / "digits"
QUICK = {"general.device": "cpu", "bab.timeout": 20}


def image_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(64, 3),
    ).train()


def test_a_module_keeps_its_class_in_a_small_ball_and_loses_it_in_a_large_one() -> None:
    module, x = image_net(), torch.rand(1, 8, 8)
    label = int(module.eval()(x[None]).argmax())
    module.train()
    with Verifier(QUICK) as verifier:
        small = verifier.verify(module, Specification.linf(x, 1e-3, label))
        large = verifier.verify(module, Specification.linf(x, 0.5, label, lowest=0, highest=1))
    assert small.verdict is Verdict.UNSAT
    assert small.counterexample is None
    assert large.verdict is Verdict.SAT
    assert module.training and not any(p.requires_grad is False for p in module.parameters())
    assert large.counterexample is not None
    inputs = torch.from_numpy(large.counterexample.inputs)
    assert float(inputs.min()) >= 0 and float(inputs.max()) <= 1
    assert float((inputs - x.flatten()).abs().max()) <= 0.5
    module.eval()
    assert int(module(inputs.view(1, 1, 8, 8)).argmax()) != label
    assert large.record.onnx == "Sequential"


def test_files_are_named_as_on_the_command_line() -> None:
    result = verify(
        DIGITS / "onnx" / "mlp.onnx",
        str(DIGITS / "vnnlib" / "mlp_image_0_eps_0.026.vnnlib"),
        {"general": {"device": "cpu", "complete_verifier": "skip"}},
    )
    assert result.verdict is Verdict.UNSAT
    assert result.record.bounds.crown


def test_a_built_config_and_a_mapping_mean_the_same() -> None:
    x = np.zeros(64, dtype=np.float32)
    statement = Specification.linf(x, 0.01, 0)
    onnx = DIGITS / "onnx" / "mlp.onnx"
    by_mapping = verify(onnx, statement, {"bab.timeout": 9, "general.device": "cpu"})
    from complete_verifier.config.keys import with_values

    built = with_values(Config(), {"bab.timeout": 9.0, "general.device": "cpu"})
    by_config = verify(onnx, statement, built)
    assert by_mapping.verdict is by_config.verdict
    assert by_mapping.record.config_hash == by_config.record.config_hash


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with Verifier(QUICK):
        pass
    assert torch.equal(torch.rand(4), expected)


class ByValue(nn.Module):
    """Takes one way for some inputs and another way for others."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class TwoOutputs(nn.Module):
    """Has two results."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (ByValue(), "ByValue: it cannot be shown to compute the same function for all inputs"),
        (TwoOutputs(), "TwoOutputs: expected one output tensor with a batch axis of 1, got tuple"),
        (nn.Linear(2, 2).double(), "Linear: expected float32 parameters, got torch.float64"),
        (nn.Linear(3, 2), "Linear: it cannot be shown to compute the same"),
    ],
)
def test_a_module_that_is_no_single_function_is_refused(module: nn.Module, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        verify(module, Specification.linf([0.0, 0.0], 0.1, 0), QUICK)


def test_a_vnnlib_file_does_not_tell_a_modules_input_shape() -> None:
    with pytest.raises(ModelError, match="input_shape: expected the shape of one input"):
        verify(nn.Linear(2, 2), "property.vnnlib", QUICK)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"bab.timeot": 3}, "bab.timeot: unknown key .*The nearest key is bab.timeout"),
        ({"bab.timeout": "long"}, "bab.timeout: expected .* got the text"),
        ({"bab": {"timeout": 3}, "bab.timeout": 4}, "bab.timeout: given twice"),
        ({"bab.timeout": object()}, "config: expected numbers, texts, lists and mappings"),
        ({"attack.attack_tolerance": 0.1}, "attack.attack_tolerance: .* is not supported"),
    ],
)
def test_a_wrong_mapping_is_refused_as_a_wrong_file_is(config: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Verifier(config)


def test_a_built_config_is_judged_by_the_same_table() -> None:
    from complete_verifier.config.keys import with_values

    config = with_values(Config(), {"attack.attack_tolerance": 0.1})
    with pytest.raises(ConfigError, match="attack.attack_tolerance"):
        Verifier(config)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0.0, 0.0], 0.1, 5), "expected classes of 0 to 1, got 5"),
        (([0.0, 0.0, 0.0], 0.1, 0), "states 3 inputs"),
    ],
)
def test_a_property_of_another_network_is_refused(arguments: tuple, text: str) -> None:
    with pytest.raises(SpecificationError, match=text):
        verify(nn.Linear(2, 2), Specification.linf(*arguments), QUICK, input_shape=(2,))


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(SpecificationError, match="eps: expected numbers of at least 0"):
        Specification.linf([0.0], -0.1, 0)
