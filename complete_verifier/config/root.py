"""The whole configuration: one immutable object of nested sections."""

from __future__ import annotations

from dataclasses import dataclass, field

from complete_verifier.config.attack import AttackConfig
from complete_verifier.config.bab import BabConfig
from complete_verifier.config.data import DataConfig
from complete_verifier.config.debug import DebugConfig
from complete_verifier.config.general import GeneralConfig
from complete_verifier.config.model import ModelConfig
from complete_verifier.config.option import Section
from complete_verifier.config.parallel import ParallelConfig
from complete_verifier.config.solver import SolverConfig
from complete_verifier.config.specification import SpecificationConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Section):
    """Every key, as `config.solver.alpha_crown.iteration`; a default config is valid.

    An attribute path is the dotted key with `-` written as `_`.
    """

    general: GeneralConfig = field(default_factory=GeneralConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    specification: SpecificationConfig = field(default_factory=SpecificationConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    bab: BabConfig = field(default_factory=BabConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    @property
    def asks_about_data(self) -> bool:
        """Whether the properties are stated around the examples of a data set."""
        stated = self.general.csv_name or self.specification.vnnlib_path
        return bool(self.data.dataset) and not stated
