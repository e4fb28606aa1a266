"""The way back from the JSON of `general.result_json` to a `Record`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from complete_verifier.results.errors import ResultError
from complete_verifier.results.record import (
    Bounds,
    BranchAndBound,
    Memory,
    Parallel,
    Parameters,
    Record,
    Seconds,
)
from complete_verifier.results.verdict import Verdict

_NOT_IN_JSON = ("inf", "-inf", "nan")

Part = TypeVar("Part")


def record_from_json(plain: Mapping[str, Any]) -> Record:
    """The record whose `to_json` gave `plain`.

    Raises:
        ResultError: a key is absent or unknown, as in a file of another version.
    """
    try:
        parallel = dict(plain["parallel"])
        parameters = _part(Parameters, parallel.pop("parameters"))
        return Record(
            onnx=str(plain["onnx"]),
            vnnlib=str(plain["vnnlib"]),
            verdict=Verdict(plain["verdict"]),
            reason=str(plain["reason"]),
            seconds=_part(Seconds, plain["seconds"]),
            bounds=_part(Bounds, plain["bounds"]),
            bab=_part(BranchAndBound, plain["bab"]),
            memory=_part(Memory, plain["memory"]),
            parallel=_part(Parallel, {**parallel, "parameters": parameters}),
            counterexample=plain["counterexample"],
            events=tuple(plain["events"]),
            ignored=tuple(plain["ignored"]),
            config_hash=str(plain["config_hash"]),
            versions=dict(plain["versions"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(
            f"record of {plain.get('onnx')} {plain.get('vnnlib')}: expected the fields that "
            f"--result_json writes; {type(error).__name__}: {error}."
        ) from error


def _part(kind: type[Part], plain: Mapping[str, Any]) -> Part:
    return kind(**{name: _value(value) for name, value in plain.items()})


def _value(value: Any) -> Any:
    """JSON's value as records hold it: tuples for arrays, and the numbers JSON lacks."""
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    if isinstance(value, dict):
        return {name: _value(item) for name, item in value.items()}
    return float(value) if value in _NOT_IN_JSON else value
