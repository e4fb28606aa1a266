"""Which questions a config asks: a batch from a CSV file, or one network and one property."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from complete_verifier.config import Config, ConfigError, InputPaths
from complete_verifier.specification import Statement, read_instances


@dataclass(frozen=True)
class Query:
    """One instance.

    Attributes:
        index: position in the batch, from 0.
        onnx: file that exists.
        vnnlib: file that exists, or a statement that comes from elsewhere.
        timeout_seconds: how long it may take.
        network_name: what the network is called in records; empty is the path of `onnx`.
    """

    index: int
    onnx: Path
    vnnlib: Path | Statement
    timeout_seconds: float
    network_name: str = ""

    @property
    def network(self) -> str:
        """What the network is called in messages and records."""
        return self.network_name or str(self.onnx)

    @property
    def property(self) -> str:
        """What the property is called in messages and records."""
        return str(self.vnnlib) if isinstance(self.vnnlib, Path) else self.vnnlib.source


def queries(config: Config, paths: InputPaths) -> tuple[Query, ...]:
    """The instances of a config, in order.

    A batch takes each instance's timeout from the CSV file, as in VNN-COMP; one instance takes
    `bab.timeout`. `bab.override_timeout` beats both, `bab.timeout_scale` multiplies.

    Raises:
        ConfigError: nothing is asked, or a named file is absent.
        SpecificationError: the CSV file is malformed.
    """
    if config.general.csv_name:
        return _batch(config, paths)
    if not config.model.onnx_path or not config.specification.vnnlib_path:
        missing = "model.onnx_path" if not config.model.onnx_path else "specification.vnnlib_path"
        raise ConfigError(
            f"{missing}: expected a file to verify, got none. Give --onnx_path and "
            "--vnnlib_path, or --csv_name for a batch."
        )
    onnx = paths.find(config.model.onnx_path_prefix + config.model.onnx_path, "model.onnx_path")
    prefix = config.specification.vnnlib_path_prefix
    vnnlib = paths.find(prefix + config.specification.vnnlib_path, "specification.vnnlib_path")
    return (Query(0, onnx, vnnlib, _timeout(config, config.bab.timeout)),)


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
