"""Values and keys as text: what `--print_config` and `--help` show."""

from __future__ import annotations

import math
from typing import Any


def render_value(value: Any) -> str:
    """A value as one would write it in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _render_float(value)
    if isinstance(value, tuple):
        return f"[{', '.join(render_value(item) for item in value)}]"
    return str(value) if str(value) else '""'


def _render_float(value: float) -> str:
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)
