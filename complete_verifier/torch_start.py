"""Start torch without the kernels of its meta device until something wants them.

`import torch` ends with `torch._meta_registrations`, which loads torch's whole library of operator
decompositions: a quarter of the import (0.7-1.0 s, torch 2.14). They serve tensors without data,
which the compiler and export work on; nothing here does. Until they are loaded such tensors raise
NotImplementedError, so a result can't depend on them.

To be removed when `import torch` no longer loads `torch._decomp` by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MODULE = "torch._meta_registrations"
# What works on tensors without data; torch imports these on their first use.
_WANTED_BY = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def defer_meta_kernels() -> None:
    """Have the next `import torch` leave them out; nothing where torch is already imported."""
    if "torch" in sys.modules:
        return
    sys.modules[_MODULE] = ModuleType(_MODULE, "Stands in until meta kernels are wanted.")
    sys.meta_path.insert(0, _LoadBefore())


def register_generators() -> None:
    """Make `torch.Generator` usable; called once torch is imported.

    Its Python type is completed by a module that the meta kernels would have loaded.
    """
    importlib.import_module("torch._prims.rng_prims")


class _LoadBefore(MetaPathFinder):
    """Loads the meta kernels before the first module that works with them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing; the import goes on with the other finders."""
        if fullname in _WANTED_BY:
            sys.meta_path.remove(self)
            del sys.modules[_MODULE]
            importlib.import_module(_MODULE)
        return None
