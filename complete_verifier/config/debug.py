"""Keys of the section `debug`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugConfig(Section):
    """Aids for whoever looks into a run."""

    SECTION: ClassVar[str] = "debug"

    view_model: bool = option(False, "--view_model", "Print the layers of the bounded model.")
    save_minimal_config: str | None = option(
        None, "--save_minimal_config", "File for the keys that differ from their defaults."
    )
    save_minimal_config_omit_keys: tuple[str, ...] = option(
        (), "--save_minimal_config_omit_keys", "Keys left out of that file."
    )
