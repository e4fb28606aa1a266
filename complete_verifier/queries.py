"""Which questions a config asks: a batch from a CSV file, or one network and one property."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from complete_verifier.config import Config, ConfigError, InputPaths, LoadedConfig
from complete_verifier.extensions import Extensions
from complete_verifier.network_source import network_source
from complete_verifier.specification import Statement, read_instances
from complete_verifier.statements import read_examples, statements


@dataclass(frozen=True)
class Query:
    """One instance.

    Attributes:
        index: position in the batch, from 0.
        onnx: file that exists.
        vnnlib: file that exists, or a statement that comes from elsewhere.
        timeout_seconds: how long it may take.
        network_name: what the network is called in records; empty is the path of `onnx`.
        rhs_offset: added to the right side of every output constraint.
    """

    index: int
    onnx: Path
    vnnlib: Path | Statement
    timeout_seconds: float
    network_name: str = ""
    rhs_offset: float = 0.0

    @property
    def network(self) -> str:
        """What the network is called in messages and records."""
        return self.network_name or str(self.onnx)

    @property
    def property(self) -> str:
        """What the property is called in messages and records."""
        return str(self.vnnlib) if isinstance(self.vnnlib, Path) else self.vnnlib.source


def queries(config: Config, loaded: LoadedConfig, folder: Path) -> tuple[Query, ...]:
    """The instances of a config, in order.

    A batch (`general.csv_name`) takes each instance's timeout from the CSV file, as in VNN-COMP;
    one VNN-LIB file, and the examples of a data set, take `bab.timeout`. `bab.override_timeout`
    beats both, `bab.timeout_scale` multiplies.

    Args:
        config: every `auto` resolved.
        loaded: where the files it names are looked for, and which functions it may call.
        folder: where a PyTorch model is written to.

    Raises:
        ConfigError: nothing is asked, or a named file is absent.
        SpecificationError: the CSV file is malformed.
        DataError, ModelError: so for the data set and the PyTorch model.
    """
    if config.general.csv_name:
        asked = _batch(config, loaded.paths)
    elif config.specification.vnnlib_path:
        asked = (_single(config, loaded, folder),)
    elif config.asks_about_data:
        asked = _examples(config, loaded, folder)
    else:
        missing = "specification.vnnlib_path" if config.model.onnx_path else "model.onnx_path"
        raise ConfigError(
            f"{missing}: expected a file to verify, got none. Give --onnx_path and "
            "--vnnlib_path, --dataset and --epsilon, or --csv_name for a batch."
        )
    offset = config.specification.rhs_offset
    return asked if offset is None else tuple(replace(q, rhs_offset=offset) for q in asked)


def _single(config: Config, loaded: LoadedConfig, folder: Path) -> Query:
    source = network_source(config, loaded.paths, Extensions(loaded.extensions), folder)
    prefix = config.specification.vnnlib_path_prefix
    named = prefix + str(config.specification.vnnlib_path)
    vnnlib = loaded.paths.find(named, "specification.vnnlib_path")
    return Query(0, source.onnx, vnnlib, _timeout(config, config.bab.timeout), source.name)


def _examples(config: Config, loaded: LoadedConfig, folder: Path) -> tuple[Query, ...]:
    extensions = Extensions(loaded.extensions)
    examples = read_examples(config, loaded.paths, extensions)
    stated = statements(config, loaded.paths, examples)
    if "data.num_outputs" in loaded.origins:
        stated = {
            index: replace(statement, num_outputs=config.data.num_outputs)
            for index, statement in stated.items()
        }
    source = network_source(config, loaded.paths, extensions, folder, examples.shape)
    timeout = _timeout(config, config.bab.timeout)
    return tuple(
        Query(index, source.onnx, statement, timeout, source.name)
        for index, statement in stated.items()
    )


def _batch(config: Config, paths: InputPaths) -> tuple[Query, ...]:
    csv = paths.find(str(config.general.csv_name), "general.csv_name")
    selected = config.data.select_instance
    instances = read_instances(
        csv,
        paths.root if paths.root is not None else csv.parent,
        start=config.data.start,
        end=config.data.end,
        select=None if selected is None else [int(index) for index in selected],
    )
    return tuple(
        Query(item.index, item.onnx, item.vnnlib, _timeout(config, item.timeout))
        for item in instances
    )


def _timeout(config: Config, stated: float) -> float:
    override = config.bab.override_timeout
    return float(stated if override is None else override) * config.bab.timeout_scale
