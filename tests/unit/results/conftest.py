"""A record builder for tests of files and summaries."""

from __future__ import annotations

import pytest

from complete_verifier.results.record import Record, Seconds
from complete_verifier.results.verdict import Verdict


def make_record(number: int = 0, verdict: str = "unsat", **fields: object) -> Record:
    """A record of instance `number`."""
    fields.setdefault("seconds", Seconds(total=float(number + 1)))
    return Record(
        onnx=f"onnx/net_{number}.onnx",
        vnnlib=f"vnnlib/prop_{number}.vnnlib",
        verdict=Verdict(verdict),
        **fields,
    )


@pytest.fixture
def record():
    """The builder above."""
    return make_record
