"""Entry: config -> ranks -> instances -> results.

    python abcrown.py --config exp_configs/digits/digits.yaml
    torchrun --nproc_per_node 2 abcrown.py --config exp_configs/digits/digits.yaml --fsdp

Exit code: 0 when every instance got an answer or an honest unknown or timeout, 1 when one ended in
an error or the run broke off, 2 when the config or the environment is at fault.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # Run as a file, upstream's habit: `python abcrown.py` in this folder. The folder itself must
    # not be searched, its modules are this package's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from auto_LiRPA_patches.errors import RankMismatchError, VerifierError
from auto_LiRPA_patches.sharding.launch import Launch, read_launch
from complete_verifier.config import LoadedConfig, describe_config, load_config
from complete_verifier.logs import make_log_folder, rank_logging

logger = logging.getLogger("abcrown")

_BAD_INPUT = 2
_BROKEN = 1


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
    # Imported here, not above: torch takes seconds, and a typo in a config should not.
    from auto_LiRPA_patches.sharding.collectives import stop
    from complete_verifier.plan import print_plan
    from complete_verifier.runner import run_queries
    from complete_verifier.session import open_session

    with rank_logging(launch, loaded.rank_logs):
        try:
            session = open_session(loaded, launch)
            if loaded.print_plan:
                return print_plan(session)
            return run_queries(session)
        except RankMismatchError as error:
            # Only some ranks may have noticed; whoever did says so.
            print(f"abcrown: rank {launch.rank}: error: {error}", file=sys.stderr)
            return _BROKEN
        except VerifierError as error:
            _complain(launch, error)
            return _BAD_INPUT
        except KeyboardInterrupt:
            _complain(launch, "interrupted; the results of finished instances are written")
            return _BROKEN
        except BrokenPipeError:
            raise
        except Exception:
            # The process boundary: whatever this is, it is no verdict. Each rank shows its own
            # traceback, since another rank's may look quite different.
            logger.exception("rank %d: internal error", launch.rank)
            return _BROKEN
        finally:
            stop()


def _show_any_letter() -> None:
    """Let a terminal without some letter (α, or one of a path) show an escape, not end the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(launch: Launch, text: str) -> None:
    if launch.rank == 0:
        print(text)


def _complain(launch: Launch, error: object) -> None:
    """Tell the user on one voice per host; all ranks of a host meet the same bad input."""
    if launch.local_rank == 0:
        print(f"abcrown: error: {error}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
