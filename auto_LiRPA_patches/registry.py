"""The patches to auto_LiRPA: what each replaces, why, and how it is undone.

`apply()` checks every record against the installed auto_LiRPA first and changes nothing unless all
of them fit; `revert()` puts the originals back. Importing this module changes nothing.

Only what our use of auto_LiRPA meets is patched: building a graph, and the relaxations of single
operators. Upstream's bounding loops serve no verdict (`engine/` replaces them), so the faults
known in them are left alone: the bookkeeping of sparse alpha in `BoundRelu.init_opt_parameters`
and `get_optimized_bounds`, the clamp of alpha inside the graph, patches mode on Transpose, and
`register_parameter`, which wants `torch._six` but is never called on a built graph.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from auto_LiRPA_patches.errors import PatchError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement of one upstream function or method."""

    id: str
    target: str
    """What is replaced, as "module:name" or "module:Class.name"."""
    replacement: str
    """Our function, as "module:name"; imported only when the patch is applied."""
    why: str
    upstream: str
    """Versions of auto_LiRPA for which the patch was written, as a PEP 440 specifier."""
    parameters: tuple[str, ...]
    """Parameter names that the upstream function must have, in order."""
    instead_of: str
    """The gentler ways (hook, subclass, wrapper) and why they do not serve."""
    remove_when: str
    exact_at_world_size_1: bool
    """Whether a patched call returns the very bits that upstream would return."""

    @property
    def undo(self) -> str:
        """How `revert` takes the patch back."""
        is_method = "." in self.target.partition(":")[2]
        return "class attribute put back" if is_method else "every copy of the function put back"


PATCHES: tuple[Patch, ...] = (
    Patch(
        id="parse-module",
        target="auto_LiRPA.parse_graph:parse_module",
        replacement="auto_LiRPA_patches.compat.trace:parse_module",
        why=(
            "calls exporter internals that torch has moved, indexes torch._C.Node, which torch no "
            "longer allows, and bakes the example's batch size into Reshape"
        ),
        upstream="==0.3",
        parameters=("module", "inputs", "param_exclude", "param_include"),
        instead_of=(
            "There is no hook, and a subclass would have to repeat BoundedModule._convert_nodes, "
            "which calls this module-level function."
        ),
        remove_when="the supported auto_LiRPA parses modules on current torch",
        exact_at_world_size_1=True,
    ),
    Patch(
        id="named-members",
        target="auto_LiRPA.bound_general:BoundedModule._named_members",
        replacement="auto_LiRPA_patches.compat.named_members:named_members",
        why="torch passes remove_duplicate to it, so named_parameters() and state_dict() fail",
        upstream="==0.3",
        parameters=("self", "get_members_fn", "prefix", "recurse"),
        instead_of="A subclass would leave BoundedModule itself broken for every other caller.",
        remove_when="the supported auto_LiRPA accepts remove_duplicate",
        exact_at_world_size_1=True,
    ),
    Patch(
        id="buffers-are-constant",
        target="auto_LiRPA.operators.leaf:BoundBuffers.__init__",
        replacement="auto_LiRPA_patches.compat.buffers:initialise",
        why=(
            "marks every buffer as depending on the input, so that its first dimension is taken "
            "for the batch, and copies it"
        ),
        upstream="==0.3",
        parameters=("self", "ori_name", "value", "perturbation"),
        instead_of="The graph builder names the class BoundBuffers; a subclass is never used.",
        remove_when="the supported auto_LiRPA treats buffers like parameters",
        exact_at_world_size_1=True,
    ),
    Patch(
        id="no-tangent-tables",
        target="auto_LiRPA.operators.activation:BoundTanh.precompute_relaxation",
        replacement="auto_LiRPA_patches.compat.tangent_tables:precompute_nothing",
        why=(
            "spends half a second per Sigmoid, Tanh or Arctan node on tables for a relaxation that "
            "operators/s_shaped.py replaces; upstream's own then fails for lack of them"
        ),
        upstream="==0.3",
        parameters=("self", "name", "func", "dfunc", "x_limit"),
        instead_of="The constructors call it unconditionally; there is no hook.",
        remove_when="the supported auto_LiRPA builds its tables on first use, or only once",
        exact_at_world_size_1=False,
    ),
)


@dataclass(frozen=True)
class _Bound:
    """A patch whose target and replacement have been found."""

    patch: Patch
    owner: Any
    name: str
    original: Any
    ours: Callable[..., Any]


@dataclass
class Registry:
    """A set of patches to one package, applied and reverted together."""

    patches: Sequence[Patch]
    package: str = "auto_LiRPA"
    load: Callable[[], object] | None = None
    """Imports the package; None for a plain import."""
    _active: list[_Bound] = field(default_factory=list, init=False)

    def applied(self) -> tuple[str, ...]:
        """Returns the ids of the patches in force, in the order of application."""
        return tuple(bound.patch.id for bound in self._active)

    def apply(self) -> None:
        """Put every patch in force; a second call does nothing.

        Raises:
            PatchError: the package is missing, or some record does not fit it. The message lists
                every problem, and nothing has been changed.
        """
        if self._active:
            return
        importlib.import_module(self.package) if self.load is None else self.load()
        found, problems = self._check()
        if problems:
            raise PatchError(
                f"{self.package} does not look as the patches expect, and nothing was changed: "
                + "; ".join(problems)
            )
        for bound in found:
            places = self._rebind(bound.owner, bound.original, bound.ours, bound.name)
            logger.debug("%s: %s replaced in %d places", bound.patch.id, bound.patch.target, places)
        self._active.extend(found)

    def revert(self) -> None:
        """Put every original back, in reverse order; does nothing when nothing is applied.

        Raises:
            PatchError: a target no longer holds our function; nothing has been changed.
        """
        foreign = [
            f"{bound.patch.target} now holds {vars(bound.owner).get(bound.name)!r}"
            for bound in self._active
            if vars(bound.owner).get(bound.name) is not bound.ours
        ]
        if foreign:
            raise PatchError(
                "cannot revert, because other code has replaced what the patches put there: "
                + "; ".join(foreign)
            )
        while self._active:
            bound = self._active.pop()
            self._rebind(bound.owner, bound.ours, bound.original, bound.name)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The patches are in force inside the block, and afterwards as they were before it."""
        outermost = not self._active
        self.apply()
        try:
            yield
        finally:
            if outermost:
                self.revert()

    def _check(self) -> tuple[list[_Bound], list[str]]:
        """Look up every target without changing anything."""
        found: list[_Bound] = []
        problems: list[str] = []
        version = getattr(sys.modules[self.package], "__version__", "unknown")
        for patch in self.patches:
            if not _version_fits(version, patch.upstream):
                problems.append(
                    f"{patch.id}: expected {self.package} {patch.upstream}, found {version}"
                )
            try:
                owner, name, original = _find(patch.target)
            except LookupError as error:
                problems.append(f"{patch.id}: {error.args[0]}")
                continue
            parameters = tuple(inspect.signature(original).parameters)
            if parameters != patch.parameters:
                problems.append(
                    f"{patch.id}: expected {patch.target}({', '.join(patch.parameters)}), "
                    f"found ({', '.join(parameters)})"
                )
            found.append(_Bound(patch, owner, name, original, _find(patch.replacement)[2]))
        return found, problems

    def _rebind(self, owner: Any, old: object, new: object, name: str) -> int:
        """Replace `old` by `new` in `owner` and wherever else the package holds a copy of it.

        Upstream copies functions with `import *` and inside class bodies, so that rebinding the
        defining module alone has no effect. Returns the number of places.
        """
        places = 0
        for holder in [owner, *_holders(self.package)]:
            for attribute, value in list(vars(holder).items()):
                if value is old:
                    setattr(holder, attribute, new)
                    places += 1
        return places


def _version_fits(version: str, specifier: str) -> bool:
    try:
        return Version(version) in SpecifierSet(specifier)
    except InvalidVersion:
        return False


def _find(path: str) -> tuple[Any, str, Any]:
    """Returns (owner, name, object) for "module:name" or "module:Class.name".

    The object is the raw entry of the owner's own namespace: an inherited or computed attribute
    could not be put back.
    """
    module_name, _, qualified = path.partition(":")
    *outer, name = qualified.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise LookupError(f"{path} does not exist: {error}") from error
    for part in outer:
        owner = vars(owner).get(part)
        if owner is None:
            raise LookupError(f"{path} does not exist: no {part} in {module_name}")
    if name not in vars(owner):
        raise LookupError(f"{path} does not exist: no {name} there")
    return owner, name, vars(owner)[name]


def _holders(package: str) -> Iterator[Any]:
    """The package's loaded modules and the classes defined in them."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] != package:
            continue
        yield module
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module_name:
                yield value


def _import_upstream() -> object:
    from auto_LiRPA_patches.compat.upstream import import_upstream

    return import_upstream()


_REGISTRY = Registry(PATCHES, load=_import_upstream)

apply = _REGISTRY.apply
revert = _REGISTRY.revert
applied = _REGISTRY.applied
patched = _REGISTRY.patched
