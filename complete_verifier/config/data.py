"""Keys of the section `data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig(Section):
    """Which instances of a batch or a data set are verified."""

    SECTION: ClassVar[str] = "data"

    start: int = option(0, "--start", "Index of the first instance.", at_least=0)
    end: int = option(10000, "--end", "Index after the last instance.", at_least=0)
    select_instance: tuple[int, ...] | None = option(
        None, "--select_instance", "Indices of the only instances to verify.", at_least=0
    )
    num_outputs: int = option(
        10, "--num_outputs", "Number of classes; read from the network here.", at_least=1
    )
    mean: float | tuple[float, ...] = option(
        0.0, "--mean", "Mean of the data set, one number or one per channel."
    )
    std: float | tuple[float, ...] = option(
        1.0, "--std", "Standard deviation of the data set, one number or one per channel.", above=0
    )
    pkl_path: str | None = option(None, "--pkl_path", "Pickle file of properties (oval20).")
    dataset: str | None = option(None, "--dataset", "Data set that images are taken from.")
    data_idx_file: str | None = option(
        None, "--data_idx_file", "Text file with the indices of the images to verify."
    )
