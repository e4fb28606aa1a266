"""Run a batch to its end, whatever single instances do to the process.

Usage: python scripts/run_batch.py [--nproc_per_node N] -- FLAGS OF abcrown.py

A process that is killed (out of memory) or that breaks off leaves behind which instance it was
working on. That instance is recorded as `error`, and a new process does the rest with `--resume`.
The exit code is that of the last process: 0, or 1 where an instance ended in an error, or 2 where
the config is at fault.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from own_words import own_words

from auto_LiRPA_patches.errors import VerifierError
from complete_verifier.config import ConfigError, load_config
from complete_verifier.results.in_progress import (
    GivenUp,
    RunningInstance,
    current_path,
    read_running,
    write_given_up,
)

_BROKEN, _BAD_INPUT = 1, 2


def run_batch(command: Sequence[str], flags: Sequence[str], current: Path) -> int:
    """Start `command` with `flags` until every instance has its result; return the exit code.

    Args:
        command: starts the verifier.
        flags: of the verifier; `--resume` and `--given_up` are added.
        current: the file that names the instance in progress.

    Raises:
        VerifierError: a file cannot be read or written.
    """
    given_up: dict[int, GivenUp] = {}
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "given_up.json"
        while True:
            write_given_up(listed, given_up.values())
            resume = ["--resume"] if given_up and "--resume" not in flags else []
            current.unlink(missing_ok=True)  # of a run that nobody looked after
            process = [*command, *flags, *resume, "--given_up", str(listed)]
            code = subprocess.run(process, check=False).returncode
            lost = read_running(current)
            if lost is None or lost.index in given_up:
                return _last_word(code)
            given_up[lost.index] = _give_up(lost, code)
            _say(f"instance {lost.index}: {given_up[lost.index].reason}; going on with the rest")


def _give_up(lost: RunningInstance, code: int) -> GivenUp:
    reason = f"the process that worked on this instance {_how_it_ended(code)}"
    return GivenUp(lost.index, reason, max(0.0, time.time() - lost.started))


def _last_word(code: int) -> int:
    """The exit code of the whole batch, once there is nothing left to go on with."""
    if code in (0, _BROKEN, _BAD_INPUT):
        return code
    _say(f"the verifier {_how_it_ended(code)}, not while it worked on an instance; stopping")
    return _BROKEN


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed (signal {-code})"


def _say(text: str) -> None:
    print(f"run_batch: {text}", file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """End by an exception, so that `subprocess.run` takes the verifier along."""
    raise SystemExit(128 + number)


def _command(processes: int | None) -> list[str]:
    program = str(Path(__file__).resolve().parent.parent / "abcrown.py")
    if processes is None:
        return [sys.executable, program]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [sys.executable, *torchrun, program]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the batch of the command line; return the exit code."""
    own, flags = own_words(arguments)
    parser = argparse.ArgumentParser(
        description="Run a batch to its end.", usage="%(prog)s [--nproc_per_node N] -- FLAGS"
    )
    parser.add_argument("--nproc_per_node", type=int, metavar="N", help="start N ranks by torchrun")
    options = parser.parse_args(own)
    signal.signal(signal.SIGTERM, _stop)
    try:
        general = load_config(flags).config.general
        current = current_path(general.result_json, general.results_file)
        if not general.csv_name or current is None:
            raise ConfigError(
                "run_batch: expected a batch and a file for its results, got "
                f"{general.csv_name!r} and {general.results_file!r}. Give --csv_name, and "
                "--result_json or --results_file, behind the --."
            )
        return run_batch(_command(options.nproc_per_node), flags, current)
    except VerifierError as error:
        _say(f"error: {error}")
        return _BAD_INPUT
    except KeyboardInterrupt:
        return _BROKEN


if __name__ == "__main__":
    sys.exit(main())
