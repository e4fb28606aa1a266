"""Graphs built by auto_LiRPA under the patches: equal to the module, for every batch size.

A failure means that bounds would be computed for another function than the user's network.
"""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches import registry
from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.compat.trace import parse_module
from auto_LiRPA_patches.compat.upstream import import_upstream
from auto_LiRPA_patches.errors import UnsupportedOperatorError


class ConvNet(nn.Module):
    """Conv, BatchNorm, a buffer, and two reshapes that read the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.rand(4)
        self.norm.running_var = 0.5 + torch.rand(4)
        self.linear = nn.Linear(64, 5)
        self.register_buffer("mean", torch.rand(64))
        self.register_buffer("unused", torch.rand(7))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.conv(x)))
        hidden = hidden.view(hidden.size(0), 4, -1).reshape(hidden.size(0), 64)
        return self.linear((hidden - self.mean) / 3)


def test_the_graph_computes_the_module_for_every_batch_size() -> None:
    torch.manual_seed(0)
    module = ConvNet().eval()
    graph = build_bounded_module(module, torch.rand(1, 3, 4, 4))
    for batch_size in (1, 2, 5):
        x = torch.rand(batch_size, 3, 4, 4)
        with torch.no_grad():
            assert torch.equal(graph(x), module(x))


def test_parameters_are_shared_and_keep_their_names() -> None:
    module = ConvNet().eval()
    graph = build_bounded_module(module, torch.rand(1, 3, 4, 4))
    own = dict(module.named_parameters())
    with registry.patched():
        names = [name for name, _ in graph.named_parameters()]
    assert sorted(names) == sorted(own)
    for node in graph._modules.values():
        if type(node).__name__ == "BoundParams":
            assert node.param is own[node.ori_name]
        if type(node).__name__ == "BoundBuffers":
            assert node.buffer.data_ptr() == module.get_buffer(node.ori_name).data_ptr()
            assert node.from_input is False


def test_nodes_are_in_topological_order_and_none_is_idle() -> None:
    graph = build_bounded_module(ConvNet(), torch.rand(1, 3, 4, 4))
    seen: set[str] = set()
    read = {name for node in graph._modules.values() for name in node.input_name}
    for name, node in graph._modules.items():
        assert seen.issuperset(node.input_name)
        assert name in read or name == graph.final_name
        seen.add(name)


def test_node_names_lead_to_the_submodule() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    graph = build_bounded_module(module, torch.rand(1, 2))
    operators = [
        name for name, node in graph._modules.items() if type(node).__name__ == "BoundLinear"
    ]
    assert operators[0].startswith("0/")
    assert operators[1].startswith("2.0/")


def test_an_unknown_operator_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    class Sign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sign(x)

    module = nn.Sequential(nn.Linear(2, 2), Sign())
    with pytest.raises(UnsupportedOperatorError, match=r'node "1/.*no operator Sign'):
        build_bounded_module(module, torch.rand(1, 2))
    assert capsys.readouterr().out == ""


def test_an_unsupported_form_is_refused_with_its_node_and_attributes() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.PReLU())
    with pytest.raises(UnsupportedOperatorError, match=r'node "1/.*Unsqueeze.*axes=\[1, 2\]'):
        build_bounded_module(module, torch.rand(1, 1, 3, 3))


def test_a_node_that_fails_in_the_forward_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import_upstream()
    relu = sys.modules["auto_LiRPA.operators.activation"].BoundRelu

    def fail(self: object, x: Tensor) -> Tensor:
        raise IndexError("planted")

    monkeypatch.setattr(relu, "forward", fail)
    with pytest.raises(UnsupportedOperatorError, match=r'"1/.*\(Relu\).*IndexError: planted'):
        build_bounded_module(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.rand(1, 2))


def test_building_leaves_patches_and_exporter_as_they_were() -> None:
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS

    import_upstream()
    library = sys.modules["auto_LiRPA.bound_general"]
    before = (library.parse_module, registry.applied(), GLOBALS.export_onnx_opset_version)
    build_bounded_module(nn.Linear(2, 2), torch.rand(1, 2))
    after = (library.parse_module, registry.applied(), GLOBALS.export_onnx_opset_version)
    assert before == after
    assert torch.jit._trace._trace_module_map is None


def test_apply_replaces_every_copy_in_auto_lirpa() -> None:
    import_upstream()
    with registry.patched():
        assert sys.modules["auto_LiRPA.bound_general"].parse_module is parse_module
        assert sys.modules["auto_LiRPA.parse_graph"].parse_module is parse_module
        assert registry.applied() == tuple(patch.id for patch in registry.PATCHES)
    assert sys.modules["auto_LiRPA.bound_general"].parse_module is not parse_module


def test_building_in_eval_mode_moves_no_running_statistics() -> None:
    module = ConvNet()
    mean = module.norm.running_mean.clone()
    build_bounded_module(module, torch.rand(1, 3, 4, 4))
    assert torch.equal(module.norm.running_mean, mean)
    assert not module.training


def test_sigmoid_nodes_compute_no_tables() -> None:
    graph = build_bounded_module(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()), torch.rand(1, 2))
    (sigmoid,) = (n for n in graph._modules.values() if type(n).__name__ == "BoundSigmoid")
    assert not hasattr(sigmoid, "d_lower")
