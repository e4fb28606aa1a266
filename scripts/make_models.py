"""Make networks and properties from seeds: the embedded example, and stand-ins of large networks.

Usage: python scripts/make_models.py digits [--folder exp_configs/digits] [--seed 0] [--images 6]
       python scripts/make_models.py resnet_large [--folder generated_models]

Without names the stand-ins are listed. A stand-in takes seconds; the configs of exp_configs/fsdp
call for theirs when they are first used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stand_ins import STAND_INS, write_stand_in

ROOT = Path(__file__).resolve().parent.parent
DIGITS = "digits"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what the command line names; returns the exit code, 2 for a name that is unknown."""
    parser = argparse.ArgumentParser(description="Make networks and properties from seeds.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="digits, or a stand-in")
    parser.add_argument("--folder", type=Path, help="where to write")
    parser.add_argument("--seed", type=int, default=0, help="digits: of data split and training")
    parser.add_argument("--images", type=int, default=6, help="digits: images tried per network")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in (DIGITS, *STAND_INS)]
    if unknown or not options.names:
        wrong = f"make_models: no network is called {', '.join(unknown)}; " if unknown else ""
        print(f"{wrong}there are: {', '.join((DIGITS, *STAND_INS))}", file=sys.stderr)
        return 2 if unknown else 0
    for name in options.names:
        if name == DIGITS:
            # Imported here, not above: training wants scikit-learn, stand-ins do without.
            from digits_example import make_digits_example

            folder = options.folder or ROOT / "exp_configs" / "digits"
            make_digits_example(folder, options.seed, options.images)
        else:
            print(write_stand_in(STAND_INS[name], options.folder or ROOT / "generated_models"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
