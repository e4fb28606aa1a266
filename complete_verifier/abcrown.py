"""Entry: config -> ranks -> instances -> results.

    python abcrown.py --config exp_configs/digits/digits.yaml
    torchrun --nproc_per_node 2 abcrown.py --config exp_configs/digits/digits.yaml --fsdp

Exit code: 0 when every instance got an answer or an honest unknown or timeout, 1 when one ended in
an error or the run broke off, 2 when the config or the environment is at fault.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from auto_LiRPA_patches.errors import RankMismatchError, VerifierError
from auto_LiRPA_patches.sharding.launch import Launch, read_launch
from complete_verifier.config import LoadedConfig, describe_config, load_config

logger = logging.getLogger("abcrown")

_BAD_INPUT = 2
_BROKEN = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verifier; returns the process's exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    launch = Launch()
    try:
        launch = read_launch()
        loaded = load_config(arguments)
        if loaded.print_config:
            _say(launch, describe_config(loaded.config, loaded.origins))
            return 0
    except VerifierError as error:
        _complain(launch, error)
        return _BAD_INPUT
    return _run(loaded, launch)


def _run(loaded: LoadedConfig, launch: Launch) -> int:
    # Imported here, not above: torch takes seconds, and a typo in a config should not.
    from auto_LiRPA_patches.sharding.collectives import stop
    from complete_verifier.logs import rank_logging
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
        except Exception:
            # The process boundary: whatever this is, it is no verdict. Each rank shows its own
            # traceback, since another rank's may look quite different.
            logger.exception("rank %d: internal error", launch.rank)
            return _BROKEN
        finally:
            stop()


def _say(launch: Launch, text: str) -> None:
    if launch.rank == 0:
        print(text)


def _complain(launch: Launch, error: object) -> None:
    """Tell the user on one rank's voice; every rank meets the same bad input."""
    if launch.rank == 0:
        print(f"abcrown: error: {error}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
