"""Functions of the user's own that a config names: `Customized("module", "function")`.

A config alone runs no code. A module is imported only where it was named by whoever started the
run, with `--extensions path/module.py`, or by an installed package, through an entry point of the
group `abcrown.extensions` whose name is the module's. Everything else is refused by name.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from complete_verifier.config import ConfigError
from complete_verifier.config.callables import NamedCallable

GROUP = "abcrown.extensions"


class Extensions:
    """Finds functions; each module is imported once, when a function of it is first asked for."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        """Args: `files` are those of `--extensions`; a module is called as its file, without .py.

        Raises:
            ConfigError: two files of one name, or a file that is not there.
        """
        self._files: dict[str, Path] = {}
        self._modules: dict[str, ModuleType] = {}
        for file in files:
            if not file.is_file() or file.suffix != ".py":
                raise ConfigError(f"--extensions: expected a Python file, got {file}.")
            if file.stem in self._files:
                raise ConfigError(f"--extensions: two modules are called {file.stem}.")
            self._files[file.stem] = file

    def function(self, named: NamedCallable, key: str) -> Callable[..., Any]:
        """The function a config names under `key`, its keyword arguments bound.

        Raises:
            ConfigError: nobody allowed its module, or the module lacks the function.
        """
        module = self._module(Path(named.module).stem, key)
        found = getattr(module, named.name, None)
        if not callable(found):
            raise ConfigError(
                f"{key}: {named}: the module {named.module} has no function {named.name}."
            )
        keywords = _keywords(named, key)
        function: Callable[..., Any] = partial(found, **keywords) if keywords else found
        return function

    def _module(self, name: str, key: str) -> ModuleType:
        if name not in self._modules:
            self._modules[name] = self._imported(name, key)
        return self._modules[name]

    def _imported(self, name: str, key: str) -> ModuleType:
        if name in self._files:
            spec = importlib.util.spec_from_file_location(name, self._files[name])
            if spec is None or spec.loader is None:
                raise ConfigError(f"--extensions: {self._files[name]} cannot be imported.")
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                raise ConfigError(
                    f"--extensions: {self._files[name]} fails when it is imported: "
                    f"{type(error).__name__}: {error}"
                ) from error
            return module
        for entry in entry_points(group=GROUP):
            if entry.name == name:
                loaded = entry.load()
                if inspect.ismodule(loaded):
                    return loaded
        raise ConfigError(
            f"{key}: the module {name} was not allowed to run. Name it on the command line: "
            f"--extensions path/to/{name}.py."
        )


def _keywords(named: NamedCallable, key: str) -> dict[str, Any]:
    """The arguments behind the function's name; each must be a literal."""
    if not named.arguments:
        return {}
    try:
        call = ast.parse(f"f({named.arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        if any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise ConfigError(
            f"{key}: {named}: expected arguments such as width=2 behind the function's name, each "
            f"a number, a text or a list, got {named.arguments!r}."
        ) from None
