"""Build auto_LiRPA's graph of a PyTorch module, or say which operator stands in the way."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from auto_LiRPA_patches.compat.upstream import import_upstream
from auto_LiRPA_patches.compat.value_operators import value_operators
from auto_LiRPA_patches.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from auto_LiRPA import BoundedModule


# What constructors of auto_LiRPA's operators raise where a form does not suit them.
_REFUSALS = (AssertionError, LookupError, NotImplementedError, TypeError, ValueError)


def build_bounded_module(module: nn.Module, example_input: Tensor) -> BoundedModule:
    """Returns auto_LiRPA's graph of `module` on the CPU, in eval mode, after a forward pass.

    Args:
        module: Put into eval mode. Its parameters are shared with the graph, not copied.
        example_input: [1, *input_shape]; only its shape and dtype matter.

    Raises:
        UnsupportedOperatorError: auto_LiRPA has no such operator, or not in this form.
        PatchError: auto_LiRPA is missing or not the version the patches are written for.
    """
    from auto_LiRPA_patches.registry import patched

    import_upstream()
    with patched(), torch.no_grad(), warnings.catch_warnings():
        from auto_LiRPA import BoundedModule

        # What the module itself warns about when it runs is not about bounding it.
        warnings.simplefilter("ignore")
        module.eval()
        uncopied = module._register_state_dict_hook(_uncopied)
        try:
            bounded = BoundedModule(
                module,
                example_input,
                # Any softmax but "complex" keeps the node whole; a maximum has no bounds here.
                bound_opts={"conv_mode": "matrix", "softmax": "whole"},
                device="cpu",
                custom_ops=_Operators(),
            )
        except UnsupportedOperatorError:
            raise
        except Exception as error:
            raise _unsupported_form(error) from error
        finally:
            uncopied.remove()
        bounded.eval()
    return bounded


class _Uncopied(OrderedDict[str, Tensor]):
    """A state that stays itself when it is copied.

    Upstream keeps a copy of all weights to restore what its forward passes change. In eval mode
    they change nothing.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> _Uncopied:
        return self


def _uncopied(_module: nn.Module, state: Any, _prefix: str, _metadata: Any) -> _Uncopied:
    return _Uncopied(state)


class _Operators(Mapping[str, Callable[..., Any]]):
    """auto_LiRPA's operator table, which refuses by name what is not in it.

    Passed as `custom_ops`, the official hook; without it upstream logs the operator to stdout and
    raises an error that names nothing.
    """

    def __contains__(self, kind: object) -> bool:
        return True

    def __getitem__(self, kind: str) -> Callable[..., Any]:
        def construct(attr: dict[str, Any], inputs: Any, index: int, *options: Any) -> Any:
            operator = _operator_class(kind, attr)
            if operator is None:
                raise UnsupportedOperatorError(
                    f'node "{attr.get("node")}": auto_LiRPA has no operator {_readable(kind, attr)}'
                    "; the network cannot be bounded."
                )
            try:
                return operator(attr, inputs, index, *options)
            except _REFUSALS as error:
                raise UnsupportedOperatorError(
                    f'node "{attr.get("node")}": operator {_readable(kind, attr)} has a form that '
                    f"auto_LiRPA cannot bound ({_attributes(attr)}): {_one_line(error)}"
                ) from error

        return construct

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _operator_class(kind: str, attr: Mapping[str, Any]) -> type | None:
    from auto_LiRPA import bound_general
    from auto_LiRPA.bound_op_map import bound_op_map

    own = value_operators()
    if kind in own:
        return own[kind]
    if kind in bound_op_map:
        return bound_op_map[kind]
    domain, _, name = kind.partition("::")
    if domain == "aten" and name == "ATen":
        return getattr(bound_general, f"BoundATen{attr['operator'].capitalize()}", None)
    return getattr(bound_general, f"Bound{name}", None) if domain == "onnx" else None


def _readable(kind: str, attr: Mapping[str, Any]) -> str:
    return f"aten::{attr['operator']}" if kind == "aten::ATen" else kind.removeprefix("onnx::")


def _attributes(attr: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in attr.items() if key not in ("node", "device", "value")}
    return ", ".join(f"{key}={value}" for key, value in shown.items()) or "no attributes"


def _unsupported_form(error: Exception) -> UnsupportedOperatorError:
    """Name the node whose forward pass failed: upstream's error does not."""
    node = _innermost_node(error.__traceback__)
    where = f'node "{node.name}" ({type(node).__name__.removeprefix("Bound")})' if node else "graph"
    return UnsupportedOperatorError(
        f"{where}: auto_LiRPA cannot build the network's graph: {_one_line(error)}"
    )


def _innermost_node(traceback: TracebackType | None) -> Any:
    from auto_LiRPA.operators.base import Bound

    innermost = None
    while traceback is not None:
        # Methods of a node call it `self`; the loop that runs the forward pass calls it `node`.
        for name in ("node", "self"):
            candidate = traceback.tb_frame.f_locals.get(name)
            if isinstance(candidate, Bound) and hasattr(candidate, "name"):
                innermost = candidate
        traceback = traceback.tb_next
    return innermost


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
