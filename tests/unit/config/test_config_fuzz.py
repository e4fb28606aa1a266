"""Whatever is written in a config, loading ends in a config or in a ConfigError, never a crash."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from complete_verifier.config import ConfigError, load_config
from complete_verifier.config.keys import build_config, flatten, key_table, section_names

_WORDS = st.sampled_from(
    [*section_names(), *(key.rpartition(".")[2] for key in key_table()), "zz", "1", "true", "<<"]
)
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), _WORDS, st.dates()
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_WORDS, inner, max_size=4)
    ),
    max_leaves=12,
)
_LETTERS = st.text(alphabet="ab:-[]{}&*!|>'\"#%@, \n\t~1.e", max_size=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "x.yaml"


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(_TREES.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True)), _LETTERS))
def test_any_file_loads_or_is_refused_with_its_place(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    try:
        config = load_config(["--config", str(path)]).config
    except ConfigError as error:
        assert str(path.parent) in str(error)
    else:
        assert build_config(flatten(config)) == config


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(
        st.one_of(
            st.sampled_from([spec.flag for spec in key_table().values()]), st.text(max_size=6)
        ),
        max_size=5,
    )
)
def test_any_command_line_loads_or_is_refused(words: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        load_config(words)
