"""Batch size, and the settings that a config states for branching on activations.

A failure is a key that means something else than in α,β-CROWN.
"""

from __future__ import annotations

import pytest

from complete_verifier.bab.batch_size import BatchSize
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.settings import bab_settings
from complete_verifier.config import load_config


def settings(*flags: str) -> BabSettings:
    return bab_settings(load_config(flags).config)


def test_a_full_batch_doubles_while_half_the_memory_is_free() -> None:
    batch = BatchSize(size=64, may_grow=True, min_children=6.4)
    assert batch.after(64, 0.3).size == 128
    assert batch.after(63, 0.3).size == 64
    assert batch.after(64, 0.5).size == 64
    assert BatchSize(size=64, may_grow=False, min_children=6.4).after(64, 0.0).size == 64
    assert batch.after(64, 0.3).min_children == 6.4


@pytest.mark.parametrize(
    ("taken", "fewest", "levels"),
    [(1, 99, 5), (3, 99, 4), (16, 99, 1), (25, 99, 1), (26, 99, 1), (500, 99, 1), (1, 3, 3)],
)
def test_several_neurons_are_split_at_once_while_children_are_few(
    taken: int, fewest: int, levels: int
) -> None:
    """At most `min_batch_size_ratio * batch_size` = 50 children, one split at least."""
    assert BatchSize(size=500, may_grow=True, min_children=50.0).levels(taken, fewest) == levels


def test_defaults_are_those_of_the_keys() -> None:
    found = settings()
    assert (found.batch_size, found.enlarge, found.min_batch_ratio) == (64, True, 0.1)
    assert (found.worst_first, found.sort_interval, found.max_iterations) == (False, None, None)
    assert (found.beta.prune_ratio, found.beta.iterations, found.inner) == (0.2, 50, None)


def test_every_key_arrives_where_it_acts() -> None:
    found = settings(
        *("--batch_size", "32", "--no_auto_enlarge_batch_size", "--min_batch_size_ratio", "0.5"),
        *("--tree_traversal", "breadth_first", "--sort_domain_interval", "3"),
        *("--max_domains", "7", "--max_iterations", "9", "--decision_thresh", "0.25"),
        *("--disable_pruning_in_iteration", "--recompute_interm", "--branching_reduceop", "mean"),
    )
    assert found.first_batch() == BatchSize(size=32, may_grow=False, min_children=16.0)
    assert (found.worst_first, found.sort_interval) == (True, 3)
    assert (found.max_domains, found.max_iterations, found.threshold) == (7.0, 9, 0.25)
    assert (found.beta.prune_ratio, found.reduceop) == (None, "mean")
    assert found.inner is not None and found.inner.iterations == 0
    assert settings("--pruning_in_iteration_ratio", "0.4").beta.prune_ratio == 0.4
    optimised = settings("--enable_opt_interm_bounds", "--iteration", "7").inner
    assert optimised is not None and optimised.iterations == 7
    assert settings("--vanilla_crown_bab").beta.iterations == 0


def test_force_synchronous_overrules_what_would_make_work_depend_on_time_or_memory() -> None:
    found = settings("--force_synchronous", "--tree_traversal", "depth_first")
    assert found.by_bound and not found.first_batch().may_grow
    assert found.own_beta.prune_ratio is None
    assert settings().own_beta.prune_ratio == 0.2


def test_more_children_may_be_wanted_than_the_config_says() -> None:
    size = BatchSize(size=500, may_grow=True, min_children=10.0)
    assert [size.levels(1, 9, children) for children in (0, 10, 32, 1e9)] == [3, 3, 5, 9]
