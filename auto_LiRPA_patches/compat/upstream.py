"""Import auto_LiRPA on current torch and numpy, and leave the process as it was found.

Upstream's import has side effects beyond its own modules: it switches two JIT flags, replaces the
warning filters, installs a log handler on the root logger and compiles a dozen functions with the
deprecated `torch.jit.script`. All of them are undone before `import_upstream` returns.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, TypeVar

from auto_LiRPA_patches.compat.stand_ins import modules_replaced, stand_ins
from auto_LiRPA_patches.errors import PatchError

INSTALL_COMMAND = "pip install --no-deps auto_LiRPA==0.3"

Function = TypeVar("Function", bound=Callable[..., Any])


def import_upstream() -> ModuleType:
    """Returns the package `auto_LiRPA`, importing it if this process has not done so yet.

    The stand-ins of `stand_ins.py` exist only during the import; torch, numpy, the JIT flags, the
    warning filters and the root logger are as before when it returns.

    Raises:
        PatchError: auto_LiRPA is not installed, or its import fails.
    """
    if "auto_LiRPA" in sys.modules:
        return sys.modules["auto_LiRPA"]
    if importlib.util.find_spec("auto_LiRPA") is None:
        raise PatchError(
            f"auto_LiRPA is not installed in {sys.prefix}. Install it with: {INSTALL_COMMAND}"
        )
    with ExitStack() as stack:
        stack.enter_context(_jit_flags_kept())
        stack.enter_context(_jit_script_off())
        stack.enter_context(_root_log_handlers_kept())
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(modules_replaced(stand_ins()))
        try:
            return importlib.import_module("auto_LiRPA")
        except (ImportError, AttributeError) as error:
            _forget_half_imported()
            raise PatchError(
                f"auto_LiRPA cannot be imported: {error}. "
                f"Expected the release 0.3 from PyPI; install it with: {INSTALL_COMMAND}"
            ) from error


@contextmanager
def _jit_flags_kept() -> Iterator[None]:
    """Restore the two profiling flags of the TorchScript executor, which upstream switches off."""
    import torch

    # The setters return the former value; there are no getters.
    executor = torch._C._jit_set_profiling_executor(True)
    mode = torch._C._jit_set_profiling_mode(True)
    torch._C._jit_set_profiling_executor(executor)
    torch._C._jit_set_profiling_mode(mode)
    try:
        yield
    finally:
        torch._C._jit_set_profiling_executor(executor)
        torch._C._jit_set_profiling_mode(mode)


@contextmanager
def _jit_script_off() -> Iterator[None]:
    """Leave upstream's `@torch.jit.script` functions as plain Python functions.

    `torch.jit.script` is deprecated, and what its fuser does depends on the flags just restored
    and on how often a function ran before, so the bits of a result could change between calls.
    """
    import torch

    script = torch.jit.script
    torch.jit.script = _unscripted  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.jit.script = script


def _unscripted(function: Function) -> Function:
    return function


@contextmanager
def _root_log_handlers_kept() -> Iterator[None]:
    """Undo the `logging.basicConfig` call in auto_LiRPA/utils.py: logging is the application's."""
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        yield
    finally:
        for handler in [handler for handler in root.handlers if handler not in before]:
            root.removeHandler(handler)


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "auto_LiRPA"]:
        del sys.modules[name]
