"""How hard and in which manner the attack searches; the `attack.*` keys without their YAML."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from complete_verifier.config.attack import AttackConfig


class LossMode(Enum):
    """What one clause's rows are turned into before the gradient is taken."""

    HINGE = "hinge"
    """Only rows that do not hold yet count; once all hold, the tightest row is pushed further."""

    SUM = "sum"
    """All rows count, held or not."""


class StartMode(Enum):
    """How the restarts are spread before they descend."""

    MIXED = "PGD"
    """The centre, uniform points, random corners, and one jump along a random output direction."""

    DIVERSIFIED = "diversed_PGD"
    """As MIXED, but every point takes several steps along its own random output direction."""


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """Budget and manner of one attack; the defaults are those of the `attack.*` keys."""

    steps: int = 100
    """Gradient steps per restart."""

    restarts: int = 30
    """Starting points per clause (disjunct) of the property."""

    step_size: float | None = None
    """First step's length. None (`auto`): a quarter of each input's width; else input units."""

    step_relative_to_width: bool = False
    """Whether `step_size` is a fraction of each input's width (`attack.pgd_alpha_scale`)."""

    step_decay: float = 0.99
    """Factor on the step length after every step."""

    early_stop: bool = True
    """Whether the first confirmed counterexample ends the search."""

    batch_size: int = 100_000_000
    """Most points the network is evaluated at in one call."""

    loss_mode: LossMode = LossMode.HINGE
    start_mode: StartMode = StartMode.MIXED

    @staticmethod
    def from_config(section: AttackConfig) -> AttackSettings:
        """Take over the `attack` section; modes that are not implemented run as the nearest."""
        return AttackSettings(
            steps=section.pgd_steps,
            restarts=section.pgd_restarts,
            step_size=None if section.pgd_alpha == "auto" else float(section.pgd_alpha),
            step_relative_to_width=section.pgd_alpha_scale,
            step_decay=section.pgd_lr_decay,
            early_stop=section.pgd_early_stop,
            batch_size=section.pgd_batch_size,
            loss_mode=LossMode(section.pgd_loss_mode or "hinge"),
            start_mode=(
                StartMode.DIVERSIFIED
                if section.attack_mode.startswith("divers")
                else StartMode.MIXED
            ),
        )

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("restarts", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"AttackSettings.{name}: expected >= {least}, got {value}.")
        if self.step_size is not None and not self.step_size > 0:
            raise ValueError(f"AttackSettings.step_size: expected > 0, got {self.step_size}.")
        if not 0 < self.step_decay <= 1:
            raise ValueError(
                f"AttackSettings.step_decay: expected in (0, 1], got {self.step_decay}."
            )
