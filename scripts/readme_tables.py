"""Print the tables that the documentation holds, from the code, or write them into the README.

Usage: python scripts/readme_tables.py keys        # what this release does with each config key
       python scripts/readme_tables.py operators   # ONNX operators that networks may be made of
       python scripts/readme_tables.py readme      # renew the README's parts between its markers
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from complete_verifier.config.support_table import support_summary, support_table
from complete_verifier.model.operators import supported_operators
from complete_verifier.results.atomic import write_text_atomically

README = Path(__file__).resolve().parent.parent / "README.md"


def renewed(text: str) -> str:
    """The README's text with the parts that are made from the code made anew.

    Raises:
        ValueError: a part's markers, ``<!-- NAME -->`` and ``<!-- /NAME -->``, are not there once.
    """
    parts = {"keys": support_summary(), "operators": ", ".join(supported_operators())}
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
        made = f"{begin}\n{part}\n{end}".replace("\\", r"\\")
        text, count = pattern.subn(made, text)
        if count != 1:
            raise ValueError(f"README: expected {begin} ... {end} once, found it {count} times")
    return text


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for; returns the exit code, 2 for another word."""
    if list(arguments) == ["keys"]:
        print(support_table())
    elif list(arguments) == ["operators"]:
        print(", ".join(supported_operators()))
    elif list(arguments) == ["readme"]:
        write_text_atomically(README, renewed(README.read_text(encoding="utf-8")))
    else:
        print("usage: readme_tables.py keys|operators|readme", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
