"""Entry: config -> ranks -> instances -> results.

    python abcrown.py --config exp_configs/digits/digits.yaml
    torchrun --nproc_per_node 2 abcrown.py --config exp_configs/digits/digits.yaml --fsdp

Exit code: 0 when every instance got an answer or an honest unknown or timeout, 1 when one ended in
an error or the run broke off, 2 when the config or the environment is at fault.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if not __package__:
    # Run as a file, upstream's habit: `python abcrown.py` in this folder. The folder itself must
    # not be searched, its modules are this package's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from auto_LiRPA_patches.errors import RankMismatchError, RanksDisagreeError, VerifierError
from auto_LiRPA_patches.sharding.launch import Launch, read_launch
from complete_verifier.config import LoadedConfig, describe_config, load_config
from complete_verifier.heap import keep_freed_memory
from complete_verifier.logs import make_log_folder, rank_logging
from complete_verifier.standard import is_standard_command, run_standard_command
from complete_verifier.torch_start import defer_meta_kernels, register_generators

logger = logging.getLogger("abcrown")

_BAD_INPUT = 2
_BROKEN = 1
_SECONDS_TO_BE_ENDED = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verifier; returns the process's exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _show_any_letter()
    try:
        return _load_and_run(arguments)
    except KeyboardInterrupt:
        return _BROKEN  # before there was anything to interrupt: torch was being imported
    except BrokenPipeError:
        # Whoever read our output (`| head`) has gone. Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN


def _load_and_run(arguments: Sequence[str]) -> int:
    if is_standard_command(arguments):
        return run_standard_command(arguments)
    launch = Launch()
    try:
        launch = read_launch()
        loaded = load_config(arguments)
        if loaded.print_config:
            _say(launch, describe_config(loaded.config, loaded.origins))
            return 0
        if loaded.rank_logs is not None:
            make_log_folder(loaded.rank_logs)
    except VerifierError as error:
        _complain(launch, error)
        return _BAD_INPUT
    return _run(loaded, launch)


def _run(loaded: LoadedConfig, launch: Launch) -> int:
    defer_meta_kernels()
    # Imported here, not above: torch takes seconds, and a typo in a config should not.
    from auto_LiRPA_patches.sharding.collectives import stop
    from complete_verifier.plan import print_plan
    from complete_verifier.runner import run_queries
    from complete_verifier.session import open_session
    from complete_verifier.stand_ins import make_stand_ins

    register_generators()
    keep_freed_memory()
    with rank_logging(launch, loaded.rank_logs), _scratch(loaded) as scratch:
        _let_others_end(launch)
        try:
            session = open_session(loaded, launch, scratch)
            make_stand_ins(session)
            code = print_plan(session) if loaded.print_plan else run_queries(session)
            stop()
            return code
        except RanksDisagreeError as error:
            _complain(launch, error)
            return _leave(launch, _BROKEN)
        except RankMismatchError as error:
            # Only some ranks may have noticed; whoever did says so.
            logger.error("abcrown: rank %d: error: %s", launch.rank, error)
            return _leave(launch, _BROKEN)
        except VerifierError as error:
            _complain(launch, error)
            return _leave(launch, _BAD_INPUT)
        except KeyboardInterrupt:
            _complain(launch, "interrupted; the results of finished instances are written")
            return _leave(launch, _BROKEN)
        except BrokenPipeError:
            raise
        except Exception:
            # The process boundary: whatever this is, it is no verdict. Each rank shows its own
            # traceback, since another rank's may look quite different.
            logger.exception("rank %d: internal error", launch.rank)
            return _leave(launch, _BROKEN)


@contextmanager
def _scratch(loaded: LoadedConfig) -> Iterator[Path]:
    """A folder for files that end with the run; made only for a PyTorch model."""
    if not loaded.config.model.name:
        yield Path()
        return
    with tempfile.TemporaryDirectory(prefix="abcrown-") as folder:
        yield Path(folder)


def _show_any_letter() -> None:
    """Let a terminal without some letter (α, or one of a path) show an escape, not end the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(launch: Launch, text: str) -> None:
    if launch.rank == 0:
        print(text)


def _complain(launch: Launch, error: object) -> None:
    """Tell the user on one voice: rank 0's, unless this rank alone has something to say."""
    if launch.rank != 0:
        logger.info("error: %s", error)  # for --rank_logs
        # Whatever rank 0 ends by, the launcher ends this one at once.
        time.sleep(_SECONDS_TO_BE_ENDED)
    print(f"abcrown: error: {error}", file=sys.stderr)


def _let_others_end(launch: Launch) -> None:
    """Arrange that Ctrl-C and crashes of native code end every rank, with a trace where possible.

    A signal handler of Python's runs when the collective it came in has returned, which may be
    never. So ranks other than 0 have none, and rank 0, which has something to say, loses its
    peers and with them its collective. SIGTERM keeps its default everywhere for the same reason.
    """
    if launch.world_size == 1:
        return
    faulthandler.enable()
    if launch.rank != 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(launch: Launch, code: int) -> int:
    """End a run that failed. Among several ranks, without another word to the others.

    Groups are not destroyed: that waits for messages on their way, which nobody may answer.
    """
    if launch.world_size == 1:
        return code
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    raise SystemExit(main())
