"""Make the embedded example: three networks trained on digits, and properties of each kind.

Trains and exports the networks, prints their test accuracy, places candidate properties around
test images, asks the verifier about all of them (once with CROWN and no attack, once with
alpha-CROWN and the attack), and writes the chosen ones with instances.csv and expected.csv.
Training takes seconds, the verifier's answers to all candidates about ten minutes on one thread.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from compare_runs import Record, read_records
from digits_networks import (
    ARCHITECTURES,
    NUM_CLASSES,
    Architecture,
    Digits,
    accuracy,
    load_data,
    train,
)
from digits_properties import Candidate, candidates, select, vnnlib_text
from onnx_graph import save_onnx

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "exp_configs" / "digits" / "digits.yaml"
TIMEOUT_SECONDS = 60
CLEAR_MARGIN = 0.1  # so that another processor's rounding does not change a property's kind
VERDICTS = {"crown": "unsat", "alpha-crown": "unsat", "open": "unknown", "violated": "sat"}


def trained(data: Digits, seed: int) -> list[Architecture]:
    """Return the architectures, each trained from `seed`; print their test accuracy."""
    result = []
    for build in ARCHITECTURES:
        torch.manual_seed(seed)
        architecture = build()
        train(architecture, data, seed=seed)
        print(f"{architecture.name}: test accuracy {accuracy(architecture, data):.4f}", flush=True)
        result.append(architecture)
    return result


def write_example(
    folder: Path, architectures: Sequence[Architecture], data: Digits, chosen: Iterable[Candidate]
) -> None:
    """Write the networks, the properties of `chosen` and instances.csv below `folder`."""
    for name in ("onnx", "vnnlib"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    for architecture in architectures:
        path = folder / "onnx" / f"{architecture.name}.onnx"
        save_onnx(architecture.layers, architecture.input_shape, NUM_CLASSES, path)
    rows = []
    for candidate in chosen:
        text = vnnlib_text(candidate, data.test_images[candidate.image], NUM_CLASSES)
        (folder / candidate.vnnlib).write_text(text)
        rows.append((candidate.onnx, candidate.vnnlib, TIMEOUT_SECONDS))
    write_csv(folder / "instances.csv", rows)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write `rows` to `path`, lines ending in a bare newline."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def verify(folder: Path, *flags: str) -> list[Record]:
    """Run the verifier on the instances of `folder` with `flags`; return its records, in order.

    Raises:
        RuntimeError: if the run fails, with the command line.
    """
    record = folder / "records.json"
    command = [sys.executable, str(ROOT / "abcrown.py"), "--config", str(CONFIG), *flags]
    command += ["--result_json", str(record), "--results_file", str(folder / "results.txt")]
    command += ["--cex_path", str(folder / "counterexample.txt")]
    # The config's relative paths are looked for in the working directory first.
    if subprocess.run(command, cwd=folder, check=False).returncode:
        raise RuntimeError(f"the verifier failed: {' '.join(command)}")
    return read_records(record)


def kind(by_crown: Record, by_alpha: Record) -> str | None:
    """Return which of `digits_properties.KINDS` an instance is, or None if it is a close call.

    Args:
        by_crown: its record under CROWN without an attack.
        by_alpha: its record under alpha-CROWN with the attack.
    """
    if abs(min(by_crown["bounds"]["crown"])) < CLEAR_MARGIN:
        return None
    if by_crown["verdict"] == "unsat":
        return "crown"
    verdict = by_alpha["verdict"]
    if verdict == "unknown" and min(by_alpha["bounds"]["alpha_crown"]) > -CLEAR_MARGIN:
        return None
    return {"unsat": "alpha-crown", "unknown": "open", "sat": "violated"}.get(verdict)


def classify(folder: Path, offered: Sequence[Candidate]) -> dict[Candidate, str]:
    """Return the kind of each candidate, whose files are in `folder`, but for close calls."""
    by_crown = verify(folder, "--bound_prop_method", "crown", "--pgd_order", "skip")
    by_alpha = verify(folder, "--bound_prop_method", "alpha-crown", "--pgd_order", "before")
    pairs = zip(by_crown, by_alpha, strict=True)
    kinds = (kind(crown, alpha) for crown, alpha in pairs)
    return {c: found for c, found in zip(offered, kinds, strict=True) if found is not None}


def make_digits_example(folder: Path, seed: int, images: int) -> None:
    """Train, export, place candidates, have them classified, and write the chosen ones.

    Args:
        folder: of the example.
        seed: of the data split and the training.
        images: how many are tried per network.
    """
    torch.set_num_threads(1)  # the same sums in the same order every time

    data = load_data(seed)
    architectures = trained(data, seed)
    offered: list[Candidate] = []
    for architecture in architectures:
        inputs = data.test_images.reshape(-1, *architecture.input_shape)
        offered += candidates(
            architecture.name, architecture.layers, inputs, data.test_labels, images
        )
    with tempfile.TemporaryDirectory() as scratch:
        write_example(Path(scratch), architectures, data, offered)
        kinds = classify(Path(scratch), offered)
    chosen = select(offered, kinds)
    write_example(folder, architectures, data, [candidate for candidate, _ in chosen])
    rows = [(c.onnx, c.vnnlib, TIMEOUT_SECONDS, VERDICTS[name], name) for c, name in chosen]
    write_csv(folder / "expected.csv", rows)
    for candidate, name in chosen:
        print(f"{name:12s} {candidate.vnnlib}")
