"""Command lines of scripts that hand on what stands behind ``--`` to abcrown.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def own_words(arguments: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The words before the first ``--`` and those behind it; None = of this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]
