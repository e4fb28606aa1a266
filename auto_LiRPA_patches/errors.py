"""Exceptions of the library floor. Each names one kind of failure; none is ever a proof."""

from __future__ import annotations


class VerifierError(Exception):
    """Base of every error that is reported to the user in one sentence, without a traceback."""


class PatchError(VerifierError):
    """auto_LiRPA is missing, has another version, or no longer looks as a patch expects."""


class UnsupportedOperatorError(VerifierError):
    """The network holds an operator, or a form of one, that cannot be bounded soundly."""


class RankMismatchError(VerifierError):
    """Two ranks disagree about what they are doing; going on would mix their data."""


class RanksDisagreeError(RankMismatchError):
    """As above, noticed by comparing notes: every rank of the group raises it, with one text."""


class SoundnessError(VerifierError):
    """A bound is not finite or a lower bound lies above its upper bound; no proof may follow."""


class MemoryRanOutError(MemoryError):
    """Bounds do not fit into a rank's memory, however few at a time; its peers raise it too.

    Not for the user like the others: whoever can do with less catches it, else it ends the run.
    """


class NonFiniteBoundError(SoundnessError):
    """A bound overflowed or is not a number: nothing is proven, and nothing is broken."""
