"""What scripts keep of their command line, and what they hand on to the verifier."""

from __future__ import annotations

import pytest
from own_words import own_words


@pytest.mark.parametrize(
    ("words", "own", "flags"),
    [
        (["a", "--b"], ["a", "--b"], []),
        (["a", "--", "--b", "--", "c"], ["a"], ["--b", "--", "c"]),
        (["--"], [], []),
        ([], [], []),
    ],
)
def test_words_are_parted_at_the_first_dashes(
    words: list[str], own: list[str], flags: list[str]
) -> None:
    assert own_words(words) == (own, flags)
    assert own_words(tuple(words)) == (own, flags)
