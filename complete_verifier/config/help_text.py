"""The text of `--help`, made from the declared keys."""

from __future__ import annotations

import itertools

from complete_verifier.config.command_line import LIST_FLAGS, PATH_FLAGS, SWITCHES
from complete_verifier.config.keys import KeySpec, key_table
from complete_verifier.config.render import render_value

_HEAD = """\
usage: abcrown.py [--config FILE.yaml] [--FLAG VALUE ...]
       torchrun --nproc_per_node N abcrown.py ... --fsdp

Proves a property of a neural network, or finds a counterexample.
A flag beats the YAML file, which beats the default.
"""


def help_text() -> str:
    """Every flag, grouped by section, with its key's default."""
    lines = [_HEAD]
    lines += [f"  {flag}\n      {text}" for flag, text in SWITCHES.items()]
    lines += [f"  {flag} PATH\n      {text}" for flag, text in PATH_FLAGS.items()]
    lines += [f"  {flag} PATH ...\n      {text}" for flag, text in LIST_FLAGS.items()]
    for section, specs in itertools.groupby(key_table().values(), key=lambda spec: spec.section):
        lines.append(f"\n{section}:")
        lines += [_entry(spec) for spec in specs]
    return "\n".join(lines)


def _entry(spec: KeySpec) -> str:
    name = spec.key.rpartition(".")[2]
    sets = f"{name}: " if not spec.info.negated else f"{name} becomes false: "
    return (
        f"  {spec.flag}{_placeholder(spec)}\n"
        f"      {sets}{spec.info.help} (default {render_value(spec.default)})"
    )


def _placeholder(spec: KeySpec) -> str:
    kind = spec.kind
    if kind.choices:
        words = [*kind.choices, *(["true", "false"] if kind.boolean else [])]
        words += ["NUMBER"] if kind.number else []
        text = "{" + ",".join(words) + "}"
    elif kind.item is not None:
        text = "VALUE ..."
    elif kind.integer:
        text = "INT"
    elif kind.number:
        text = "NUMBER"
    else:
        text = "true|false" if kind.boolean else "TEXT"
    return f" [{text}]" if kind.boolean else f" {text}"
