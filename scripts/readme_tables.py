"""Print the tables that the documentation holds, from the code.

Usage: python scripts/readme_tables.py keys        # what this release does with each config key
       python scripts/readme_tables.py operators   # ONNX operators that networks may be made of
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main(arguments: Sequence[str]) -> int:
    """Print the table that is asked for; returns the exit code, 2 for another word."""
    if list(arguments) == ["keys"]:
        from complete_verifier.config.support_table import support_table

        print(support_table())
    elif list(arguments) == ["operators"]:
        from complete_verifier.model.operators import supported_operators

        print(", ".join(supported_operators()))
    else:
        print("usage: readme_tables.py keys|operators", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
