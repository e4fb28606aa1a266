"""Helpers of the config tests: write a YAML file, load it, catch the error's text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from complete_verifier.config import ConfigError, LoadedConfig, load_config

Load = Callable[..., LoadedConfig]
ErrorText = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load `x.yaml` with the given text, in a working directory of its own, with more flags."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | None = None, *flags: str) -> LoadedConfig:
        if text is None:
            return load_config(flags)
        Path("x.yaml").write_text(text, encoding="utf-8")
        return load_config(["--config", "x.yaml", *flags])

    return run


@pytest.fixture
def error_text(load: Load) -> ErrorText:
    """The text of the ConfigError that loading raises."""

    def run(text: str | None = None, *flags: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, *flags)
        return str(caught.value)

    return run
