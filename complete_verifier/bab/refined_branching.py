"""Branch and bound that refines its root when a first run leaves the region open (`bab-refine`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.refinement import OutOfTime, RefineContext, RefinePass, refine
from complete_verifier.bounds.root import Root


def branch_and_refine(
    root: Root,
    context: BabContext,
    settings: BabSettings,
    passes: Sequence[RefinePass],
    clock: Callable[[float], OutOfTime],
) -> BabOutcome:
    """Decide a region: runs of branch and bound, each from a root refined once more.

    Args:
        root, context, settings: of `activation_branch_and_bound`.
        passes: what comes before the last run, in order; none leaves just that run.
        clock: see `RefineContext`.

    Returns:
        The outcome of the last run, with the subproblems and rounds of all.
    """
    before = BabOutcome(ending=Ending.TIMEOUT, reason="")
    for one in passes:
        if one.share > 0:
            brief = replace(context.bounds, out_of_time=clock(one.share))
            run = activation_branch_and_bound(root, replace(context, bounds=brief), settings)
            before = _together(before, run)
            if run.ending is not Ending.TIMEOUT:
                return before
        if context.partners.pool.agree_any(context.out_of_time()):
            break
        root = refine(root, RefineContext(context.bounds, context.partners, clock), one.settings)
    return _together(before, activation_branch_and_bound(root, context, settings))


def _together(before: BabOutcome, run: BabOutcome) -> BabOutcome:
    """The later run's outcome with the counters of both; a bound of either holds."""
    return replace(
        run,
        rounds=before.rounds + run.rounds,
        domains_visited=before.domains_visited + run.domains_visited,
    )
