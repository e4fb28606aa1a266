"""Run a command of the VNN-LIB standard.

    abcrown verify QUERY --network NAME=MODEL [--network ...] [--timeout SECONDS]
    abcrown supports CAPABILITY
    abcrown --name
    abcrown --version

Standard output holds the answer and nothing else: for `verify` the result (sat, unsat, unknown or
timed-out) in its first line, and for sat the assignment below it. Everything else goes to standard
error. Exit code 0 stands for an answer; 2 for a command, query or network that is at fault.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from auto_LiRPA_patches.errors import UnsupportedOperatorError, VerifierError
from complete_verifier.standard.capabilities import CAPABILITIES
from complete_verifier.standard.process_age import process_age

if TYPE_CHECKING:
    from complete_verifier.api import Result
    from complete_verifier.model.joined import Part
    from complete_verifier.specification.query_file import Declared, QueryFile

NAME = "alpha-beta-CROWN, sharded"
_PACKAGE = "alpha-beta-crown-sharded"
_COMMANDS = ("verify", "supports", "capabilities")
_GLOBAL = ("--name", "--version")
_NO_LIMIT = 10.0**9
_LEAST_SECONDS = 0.5
# What is left to do after the answer is known: write it, and take the process down.
_END_SECONDS = 2.5


class CommandError(VerifierError):
    """The command line is not one of the standard; says what was expected."""


@dataclass(frozen=True)
class VerifyCommand:
    """What `verify` was given; `timeout` in seconds."""

    query: Path
    networks: dict[str, Path]
    timeout: float


def is_standard_command(arguments: Sequence[str]) -> bool:
    """Whether these are the arguments of a command of the standard, well formed or not."""
    return bool(arguments) and (arguments[0] in _COMMANDS or arguments[0] in _GLOBAL)


def run_standard_command(arguments: Sequence[str]) -> int:
    """Run it; returns the exit code."""
    try:
        command, *rest = arguments
        if command in _GLOBAL:
            if rest:
                raise CommandError(f"{command}: expected nothing after it, got {rest[0]!r}.")
            _emit(NAME if command == "--name" else _own_version())
        elif command == "verify":
            _emit(_verified(_verify_command(rest)))
        else:
            _emit(*_capability(rest))
    except VerifierError as error:
        print(f"abcrown: error: {error}", file=sys.stderr)
        return 2
    return 0


def _emit(*lines: str) -> None:
    """To standard output, with plain line feeds on every platform."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _own_version() -> str:
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return "0.1.0.dev0"


def _capability(rest: Sequence[str]) -> tuple[str, ...]:
    if len(rest) != 1 or rest[0] not in CAPABILITIES:
        got = " ".join(rest) or "nothing"
        raise CommandError(f"supports: expected one of {', '.join(CAPABILITIES)}, got {got}.")
    return CAPABILITIES[rest[0]]()


def _verify_command(rest: Sequence[str]) -> VerifyCommand:
    query: Path | None = None
    networks: dict[str, Path] = {}
    timeout = _NO_LIMIT
    words = list(rest)
    while words:
        word = words.pop(0)
        flag, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if flag in ("--network", "--timeout"):
            if not has_value and not words:
                raise CommandError(f"verify: expected a value after {flag}, got none.")
            value = value if has_value else words.pop(0)
            if flag == "--timeout":
                timeout = _seconds(value)
            else:
                name, path = _network(value)
                if name in networks:
                    raise CommandError(f"verify: --network names {name!r} twice.")
                networks[name] = path
        elif flag == "--serialise-assignments":
            raise CommandError(f"verify: {flag} is not supported; assignments go to stdout.")
        elif word.startswith("--"):
            raise CommandError(f"verify: unknown option {flag}. There are --network and --timeout.")
        elif query is not None:
            raise CommandError(f"verify: expected one query, got {word!r} as well.")
        else:
            query = Path(word)
    if query is None:
        raise CommandError("verify: expected the path of a VNN-LIB query, got none.")
    return VerifyCommand(query, networks, timeout)


def _seconds(text: str) -> float:
    # Callers write 60 and 60.0 alike; signs, exponents, inf and nan are none of these.
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        raise CommandError(f"verify: --timeout: expected seconds such as 60 or 2.5, got {text!r}.")
    return min(float(text), _NO_LIMIT)


def _network(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise CommandError(f"verify: --network: expected NAME=MODEL, got {text!r}.")
    return name, Path(path)


def _verified(command: VerifyCommand) -> str:
    """The text of the answer, without the last line's end.

    The caller's limit holds for the whole process, from before Python was started.
    """
    from complete_verifier.api import Verifier
    from complete_verifier.specification.query_file import read_query_file

    query = read_query_file(command.query)
    model = _model(command, query)
    left = max(command.timeout - process_age() - _END_SECONDS, _LEAST_SECONDS)
    config = {"bab.timeout": left, "general.complete_verifier": "auto"}
    with Verifier(config) as verifier:
        _check_shape(model, query)
        try:
            result = verifier.verify(model, query.specification)
        except UnsupportedOperatorError as error:
            print(f"abcrown: {error}", file=sys.stderr)
            return "unknown"
    print(f"abcrown: {result.verdict.value}: {result.reason}", file=sys.stderr)
    return _answer(query, result)


def _model(command: VerifyCommand, query: QueryFile) -> Path:
    """The file of the one network that the query declares."""
    for name in command.networks:
        if name != query.network:
            raise CommandError(
                f"verify: --network names {name!r}, but the query declares {query.network!r}."
            )
    if not command.networks:
        raise CommandError(
            f"verify: expected a model for the network {query.network!r} that the query declares: "
            f"--network {query.network}=MODEL."
        )
    return command.networks[query.network]


def _check_shape(model: Path, query: QueryFile) -> None:
    """Refuse a query whose inputs or outputs are laid out otherwise than the model's."""
    from complete_verifier.model.errors import ModelError
    from complete_verifier.model.onnx_file import read_input, read_outputs

    try:
        inputs = read_input(model).parts
    except ModelError:  # a shape that the file leaves open is what the query declares
        inputs = read_input(model, query.inputs[0].shape or None).parts
    _check_parts(model, "input", query.inputs, inputs)
    outputs = read_outputs(model)
    if len(query.outputs) > 1 or len(outputs) > 1:  # the size of one is checked when it is loaded
        _check_parts(model, "output", query.outputs, outputs)


def _check_parts(
    model: Path, what: str, declared: Sequence[Declared], stated: Sequence[Part]
) -> None:
    """Refuse declared variables that are not the file's, one by one in its order."""
    if len(declared) != len(stated):
        names = ", ".join(part.name for part in stated)
        raise CommandError(
            f"verify: the query declares {len(declared)} {what}(s), but {model} has "
            f"{len(stated)}: {names}."
        )
    for own, part in zip(declared, stated, strict=True):
        if [size for size in part.shape if size != 1] != [size for size in own.shape if size != 1]:
            raise CommandError(
                f"verify: the query declares the {what} {own.name} of shape {_dimensions(own)}, "
                f"but {model} has {list(part.shape)}."
            )
        if own.onnx_name and own.onnx_name != part.name:
            raise CommandError(
                f"verify: the query declares the {what} {own.name} as {own.onnx_name!r}, but in "
                f"its place {model} has {part.name!r}. Declare them in the file's order."
            )


def _answer(query: QueryFile, result: Result) -> str:
    names = {"timeout": "timed-out"}
    verdict = names.get(result.verdict.value, result.verdict.value)
    if result.counterexample is None:
        return verdict
    found = result.counterexample
    return "\n".join(
        [
            verdict,
            *_assignments(query.inputs, found.inputs),
            *_assignments(query.outputs, found.outputs),
        ]
    )


def _assignments(variables: Sequence[Declared], values: np.ndarray) -> list[str]:
    """Of each variable name, type and shape; then its values, each with all its digits."""
    lines, flat = [], values.reshape(-1)
    for declared in variables:
        lines.append(f"{declared.name} {declared.element_type} {_dimensions(declared)}")
        kind = int if declared.element_type.startswith("int") else float
        own = flat[declared.first : declared.first + declared.size]
        lines += [repr(kind(value)) for value in own]
    return lines


def _dimensions(declared: Declared) -> str:
    return f"[{','.join(map(str, declared.shape))}]"
