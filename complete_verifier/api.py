"""Verification from Python: `verify` for one question, `Verifier` for many.

    result = verify("net.onnx", "property.vnnlib")
    result = verify(module, Specification.linf(x, 0.03, label=7), {"bab.timeout": 60})

Inside torchrun every rank calls with the same arguments and gets the same result; weights are
spread with ``{"parallel.fsdp": True}``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from auto_LiRPA_patches.sharding.collectives import stop
from auto_LiRPA_patches.sharding.launch import read_launch
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.config import Config, ConfigError, load_given_config
from complete_verifier.model.errors import ModelError
from complete_verifier.model.torch_module import run_module, write_onnx
from complete_verifier.queries import Query
from complete_verifier.results.record import Record
from complete_verifier.results.verdict import Verdict
from complete_verifier.runner import Finished, Runner
from complete_verifier.session import open_session
from complete_verifier.specification import Robustness, Specification, Statement

NetworkLike: TypeAlias = "str | Path | nn.Module"
PropertyLike: TypeAlias = "str | Path | Specification | Robustness"
ConfigLike: TypeAlias = "Config | Mapping[str, Any] | str | Path | None"


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to one question.

    Attributes:
        verdict: `Verdict.UNSAT` is proven: no input of the set is unsafe. `Verdict.SAT` comes with
            a counterexample. `Verdict.UNKNOWN` and `Verdict.TIMEOUT` leave it open.
        reason: why, in one sentence.
        counterexample: inputs and outputs, flat float32; None unless the verdict is SAT.
        record: seconds, bounds, memory, ignored keys: what `general.result_json` would hold.
    """

    verdict: Verdict
    reason: str
    counterexample: Counterexample | None
    record: Record


def verify(
    network: NetworkLike,
    property: PropertyLike,
    config: ConfigLike = None,
    *,
    input_shape: Sequence[int] | None = None,
) -> Result:
    """Prove that `network` has `property`, or find a counterexample.

    Args:
        network: path of an ONNX file, or a PyTorch module (float32; run in eval mode, left as it
            is). A module must not choose by values what it computes.
        property: path of a VNN-LIB file, or `Specification.linf(x, eps, label)`.
        config: a `Config`, a mapping of keys (``{"bab.timeout": 60}``), or a YAML file's path;
            None is every default. Keys that name files (model, specification, csv) are not read.
        input_shape: shape of one input of a module, without batch; by default that of the point
            the property is about.

    Returns:
        The same on every rank.

    Raises:
        ConfigError, ModelError, SpecificationError, UnsupportedOperatorError: the question cannot
            be asked; the message says why and what to do.
    """
    with Verifier(config) as verifier:
        return verifier.verify(network, property, input_shape=input_shape)


class Verifier:
    """Asks many questions under one config; a context manager, which joins and leaves the ranks.

    While it is open, random numbers of torch follow `general.seed` and float32 products on CUDA
    devices are exact (no TF32).
    """

    def __init__(self, config: ConfigLike = None) -> None:
        """Read the config.

        Raises:
            ConfigError: something in it is wrong or not supported.
        """
        self._loaded = load_given_config(config)
        self._open = ExitStack()
        self._runner: Runner | None = None
        self._folder = Path()
        self._asked = 0

    def __enter__(self) -> Verifier:
        """Join the other ranks, where torchrun started some."""
        with ExitStack() as opening:
            opening.enter_context(torch.random.fork_rng(devices=[]))
            opening.callback(_restore_precision, _precision())
            opening.callback(stop)
            self._folder = Path(opening.enter_context(tempfile.TemporaryDirectory()))
            session = open_session(self._loaded, read_launch(), self._folder)
            self._runner = Runner(session)
            opening.callback(self._runner.forget)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._runner is not None:
            self._runner.abandon()
        self._runner = None
        self._open.close()

    def verify(
        self,
        network: NetworkLike,
        property: PropertyLike,
        *,
        input_shape: Sequence[int] | None = None,
    ) -> Result:
        """See `verify` of this module."""
        if self._runner is None:
            raise ConfigError("Verifier: open it first: with Verifier(config) as verifier: ...")
        self._asked += 1
        statement: Path | Statement
        statement = Path(property) if isinstance(property, (str, Path)) else property
        if not isinstance(network, nn.Module):
            return _result(self._runner.verify(self._query(Path(network), statement)))
        shape = self._input_shape(input_shape, property)
        name = type(network).__name__
        path = self._folder / f"{name}_{self._asked}.onnx"
        write_onnx(network, shape, path, name)
        finished = self._runner.verify(self._query(path, statement, name))
        path.unlink(missing_ok=True)
        return _agreed(_result(finished), network, shape)

    def _query(self, onnx: Path, statement: Path | Statement, name: str = "") -> Query:
        bab = self._loaded.config.bab
        stated = bab.timeout if bab.override_timeout is None else bab.override_timeout
        return Query(self._asked - 1, onnx, statement, float(stated) * bab.timeout_scale, name)

    def _input_shape(self, given: Sequence[int] | None, property: PropertyLike) -> tuple[int, ...]:
        if given is not None:
            return tuple(given)
        if isinstance(property, Robustness) and property.shape:
            return property.shape
        configured = self._loaded.config.model.input_shape
        if configured is not None:
            return configured[1:]
        raise ModelError(
            "input_shape: expected the shape of one input of the module, got none. Give "
            "input_shape=(3, 32, 32), without the batch."
        )


def _result(finished: Finished) -> Result:
    record, outcome = finished.record, finished.outcome
    found = None if outcome is None else outcome.counterexample
    return Result(record.verdict, record.reason, found, record)


def _agreed(result: Result, module: nn.Module, shape: tuple[int, ...]) -> Result:
    """The result, unless it is a counterexample at which module and exported file differ."""
    if result.counterexample is None:
        return result
    inputs, outputs = result.counterexample.inputs, result.counterexample.outputs
    own = run_module(module, torch.from_numpy(inputs), shape).numpy()
    close = np.abs(own - outputs) <= _SAME * np.maximum(1.0, np.abs(outputs))
    if own.shape == outputs.shape and bool(close.all()):
        return result
    reason = "the module and its export differ at the counterexample that was found"
    return Result(Verdict.UNKNOWN, reason, None, result.record)


_SAME = 1e-4
"""Relative; as when the file was compared with the module."""


def _precision() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def _restore_precision(precision: tuple[bool, bool]) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = precision
