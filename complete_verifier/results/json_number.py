"""Numbers in JSON. JSON has no infinity and no nan; bounds have all three."""

from __future__ import annotations

import math

JsonNumber = float | str | None


def json_number(value: float | None) -> JsonNumber:
    """Return `value` as JSON can hold it: finite as it is, else "inf", "-inf" or "nan".

    `float(...)` of such a string gives the number back. A number is never turned into null, which
    means "was not computed".
    """
    if value is None or math.isfinite(value):
        return value
    return str(float(value))
