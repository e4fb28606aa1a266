"""Walk over the text of a VNN-LIB file, one token at a time, knowing where it is."""

from __future__ import annotations

import re
from decimal import Decimal

from complete_verifier.specification.errors import SpecificationError, error_at

# Each pattern can fail in one way only, so that no text makes them backtrack for long.
NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(NUMBER)
_BLANK_TEXT = r"(?:\s+|;[^\n]*)*"
_BLANK = re.compile(_BLANK_TEXT, re.ASCII)
_TOKEN = re.compile(_BLANK_TEXT + r'([()]|"[^"]*"|[^\s()";]+)', re.ASCII)

# Rational arithmetic on 1e-999999999 would need a gigabyte; no float64 is near such numbers.
_MAX_DIGITS = 1000
_MIN_EXPONENT = -1000
_MAX_EXPONENT = 307


class TokenReader:
    """A position in `text`; `source` names the text in messages."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.position = 0
        self.token_start = 0

    def error(self, message: str, offset: int | None = None) -> SpecificationError:
        """Return an error at `offset`, or at the token read last."""
        where = self.token_start if offset is None else offset
        return error_at(self.source, self.text, where, message)

    def skip_blank(self) -> int:
        """Move past white space and comments; return the position reached."""
        match = _BLANK.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return self.position

    def peek(self) -> str:
        """Return the character the next token starts with, or '' at the end of the text."""
        start = self.skip_blank()
        return self.text[start : start + 1]

    def next(self, expected: str) -> str:
        """Return the next token and move past it; `expected` is for the error at the end."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            self.token_start = self.skip_blank()
            if self.token_start == len(self.text):
                raise self.error(f"expected {expected}, got the end of the file")
            raise self.error("this text in double quotes never ends")
        self.token_start = match.start(1)
        self.position = match.end()
        return match.group(1)

    def expect(self, token: str, where: str) -> None:
        """Move past `token`, which must come next."""
        got = self.next(f"'{token}' {where}")
        if got != token:
            raise self.error(f"expected '{token}' {where}, got '{shorten(got)}'")

    def skip_to_close(self) -> None:
        """Move past the bracket that closes the one already read."""
        depth = 1
        while depth:
            token = self.next("')'")
            depth += (token == "(") - (token == ")")

    def constant(self, token: str, offset: int) -> Decimal | None:
        """Return the number `token` states, exactly, or None where it states none."""
        if _NUMBER.fullmatch(token) is None:
            return None
        if len(token) > _MAX_DIGITS:
            raise self.error(
                f"this constant has {len(token)} characters; at most {_MAX_DIGITS} are read", offset
            )
        value = Decimal(token)
        if value and not _MIN_EXPONENT <= value.adjusted() <= _MAX_EXPONENT:
            raise self.error(
                f"constant {shorten(token)} is out of range; expected 0 or a magnitude between "
                f"1e{_MIN_EXPONENT} and 1e{_MAX_EXPONENT + 1}",
                offset,
            )
        return value


def shorten(token: str) -> str:
    """Return `token` cut to a length that fits a message."""
    return token if len(token) <= 40 else token[:37] + "..."
