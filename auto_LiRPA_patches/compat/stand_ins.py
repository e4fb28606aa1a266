"""Modules that auto_LiRPA 0.3 imports but that current torch, numpy or Python no longer offer.

They are visible in `sys.modules` only while auto_LiRPA is being imported (see `upstream.py`); the
real torch and numpy modules are never touched. Each entry says what upstream wants it for.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

Item = TypeVar("Item")


def stand_ins() -> dict[str, ModuleType]:
    """Returns module name -> stand-in for every module that auto_LiRPA's import needs replaced."""
    import numpy

    contents: dict[str, dict[str, Any]] = {
        # operators/base.py; removed in numpy 2.
        "numpy.lib.arraysetops": {"isin": numpy.isin},
        # parse_graph.py, whose only caller `parse_module` is replaced by ours.
        "torch.onnx.utils": {"_optimize_graph": _moved_to_the_torchscript_exporter},
        "torch.onnx.symbolic_helper": {"_set_opset_version": _moved_to_the_torchscript_exporter},
        # cuda_utils.py, to compile CUDA kernels on request; importing the real ones takes 0.2 s
        # and prints a warning where no CUDA toolkit is installed.
        "torch.utils.cpp_extension": dict.fromkeys(
            ("load", "BuildExtension", "CUDAExtension"), _no_kernels_are_compiled
        ),
        "setuptools": {"setup": _no_kernels_are_compiled},
        # utils.py, which makes this directory at import if it does not exist.
        "appdirs": {"user_data_dir": _existing_directory},
    }
    if importlib.util.find_spec("tqdm") is None:
        # backward_bound.py, a progress bar inside a loop that our engine does not use.
        contents["tqdm"] = {"tqdm": _without_progress_bar}
    return {name: stand_in(name, attributes) for name, attributes in contents.items()}


def stand_in(name: str, attributes: Mapping[str, Any]) -> ModuleType:
    """Returns a module object with the given contents; it is in no `sys.modules`."""
    module = ModuleType(name, "Stand-in that exists while another package is imported.")
    vars(module).update(attributes)
    return module


@contextmanager
def modules_replaced(replacements: Mapping[str, ModuleType]) -> Iterator[None]:
    """Put `replacements` into `sys.modules`, and afterwards whatever was there before."""
    before = {name: sys.modules.get(name) for name in replacements}
    sys.modules.update(replacements)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _moved_to_the_torchscript_exporter(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError(
        "auto_LiRPA's own parse_module does not run on this torch: apply the patches first "
        "(auto_LiRPA_patches.registry.apply())."
    )


def _no_kernels_are_compiled(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("auto_LiRPA's CUDA kernels are not compiled under auto_LiRPA_patches.")


def _existing_directory(_application: str) -> str:
    return tempfile.gettempdir()


def _without_progress_bar(items: Iterable[Item]) -> Iterable[Item]:
    return items
