"""Change files at random and use them: each must be refused in one line, or serve in a run.

Usage: python scripts/fuzz_files.py [--count 1000] [--seed 0] [--kinds yaml vnnlib onnx]

Bytes of a valid file are overwritten, doubled, removed or swapped with others of the file. What
loads is verified, a few seconds at most. Exit code 1 where something else than a `VerifierError`
comes out of loading, where its text has several lines, or where a run shows a traceback or an
internal error; the file is then kept beside the output.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DIGITS = ROOT / "exp_configs" / "digits"

from auto_LiRPA_patches.errors import VerifierError  # noqa: E402


def mutated(content: bytes, rng: random.Random) -> bytes:
    """One to four random changes of a file's bytes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 8, 40))
        piece = bytes(changed[start : start + length])
        other = rng.randrange(len(changed) + 1)
        change = rng.randrange(5)
        if change == 0:
            changed[start : start + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            del changed[start : start + length]
        elif change == 2:
            changed[start:start] = piece
        elif change == 3:
            changed[other : other + length] = piece
        else:
            changed[start:start] = rng.choice((b"(", b")", b": ", b"\x00", b"-1e999", b"\xff\xff"))
    return bytes(changed)


def load_yaml(path: Path) -> None:
    """Read a config."""
    from complete_verifier.config import load_config

    load_config(["--config", str(path)])


def load_vnnlib(path: Path) -> None:
    """Read a property."""
    from complete_verifier.specification import read_vnnlib

    read_vnnlib(path)


def load_onnx(path: Path) -> None:
    """Read a network, build its graph, and compare it with onnxruntime."""
    from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
    from complete_verifier.model.network import load_network

    load_network(path, OneRankWeights())


KINDS: dict[str, tuple[Path, Callable[[Path], None]]] = {
    "yaml": (ROOT / "exp_configs" / "vnncomp22" / "mnist_fc.yaml", load_yaml),
    "vnnlib": (DIGITS / "vnnlib" / "mlp_image_0_eps_0.026.vnnlib", load_vnnlib),
    "onnx": (DIGITS / "onnx" / "conv.onnx", load_onnx),
}


def run(kind: str, path: Path, folder: Path) -> str:
    """Verify a digits property with the file in its place; returns what is wrong with the run."""
    from complete_verifier.abcrown import main as abcrown

    argv = ["--device", "cpu", "--timeout", "3", "--results_file", str(folder / "out.txt")]
    if kind == "yaml":
        argv += ["--config", str(path), "--root_path", str(DIGITS), "--csv_name", "instances.csv"]
        argv += ["--end", "1"]
    else:
        network = "conv" if kind == "onnx" else "mlp"
        named = {
            "onnx": DIGITS / "onnx" / f"{network}.onnx",
            "vnnlib": sorted((DIGITS / "vnnlib").glob(f"{network}_*.vnnlib"))[0],
            kind: path,
        }
        argv += ["--onnx_path", str(named["onnx"]), "--vnnlib_path", str(named["vnnlib"])]
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            abcrown(argv)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - that is what is looked for
        return f"the run ends with {type(error).__name__}: {str(error)[:200]}"
    text = shown.getvalue()
    for sign in ("Traceback", "internal error"):
        if sign in text:
            return f"the run shows {text[text.index(sign) :][-300:]!r}"
    return ""


def fuzz(kind: str, count: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Load `count` mutated files; returns how many loaded, and what came out that should not."""
    source, load = KINDS[kind]
    content, rng = source.read_bytes(), random.Random(f"{kind} {seed}")
    loaded, faults = 0, []
    for number in range(count):
        path = folder / f"{kind}_{seed}_{number}.{kind}"
        path.write_bytes(mutated(content, rng))
        fault = ""
        try:
            load(path)
            loaded += 1
            fault = run(kind, path, folder)
        except VerifierError as error:
            if "\n" in str(error):
                fault = f"a message of several lines: {str(error)[:200]!r}"
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            fault = f"{type(error).__name__}: {str(error)[:200]}"
        if fault:
            faults.append(f"{path}: {fault}")
        else:
            path.unlink()
    return loaded, faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Use files that were changed at random.")
    parser.add_argument("--count", type=int, default=1000, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args(arguments)
    if "onnx" in options.kinds:
        from auto_LiRPA_patches import registry

        registry.apply()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    wrong = 0
    for kind in options.kinds:
        loaded, faults = fuzz(kind, options.count, options.seed, folder)
        refused = options.count - loaded - len(faults)
        print(f"{kind}: {loaded} loaded, {refused} refused, {len(faults)} at fault")
        for fault in faults:
            print(f"  {fault}")
        wrong += len(faults)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
