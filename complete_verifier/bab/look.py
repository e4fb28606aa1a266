"""Look at a batch before it is split: what each neuron costs, and where the bounds are attained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.subproblems import Subproblems, relu_like
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.branching import Scores, score
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.relaxation_cost import relaxation_cost


def look(bounding: Bounding, batch: DomainBatch, is_open: Tensor) -> tuple[Scores, np.ndarray]:
    """Bound a batch once more with the α and β it came with.

    Args:
        batch: B subproblems.
        is_open: ``[B, T]`` features that can be split.

    Returns:
        Scores of the features, and ``[B, num_inputs]`` inputs at which the bound of the row
        closest to a proof is attained; without any row where no bound depends on the input.
    """
    tables: list[dict[int, Tensor]] = []
    attained: list[dict[int, Tensor]] = []
    slopes: list[dict[int, Tensor]] = []
    costs: list[dict[int, Tensor]] = []
    points = []
    box = bounding.root.box
    for part in bounding.parts(batch):
        problem, state = _ready(bounding.subproblems(part, bounding.signs(part)))
        lower, seen, values = problem.attained(state)
        margins = lower.double() - bounding.thresholds(part)
        row = margins.nan_to_num(nan=-torch.inf).argmax(dim=0)
        every = torch.arange(part.count, device=row.device)
        own = {index: _at(table, row) for index, table in seen.items()}
        at_input = own.pop(0, None)
        if at_input is not None:
            center, radius = box.center.flatten(1), box.radius.flatten(1)
            points.append(center - at_input.sign() * radius)
        tables.append(own)
        attained.append(
            {
                index: _at(values[index], row) if index in values else torch.zeros_like(a[0][0])
                for index, a in problem.alphas.items()
            }
        )
        slopes.append({index: _at(a[0], row) for index, a in problem.alphas.items()})
        costs.append(
            {
                span.activation: relaxation_cost(
                    problem, state, span, (row, every), own[span.activation], attained[-1]
                )
                for span in bounding.features.spans
                if span.kink is None
            }
        )
    count = batch.count
    scores = score(
        bounding.features,
        _joined(tables, count),
        _joined(attained, count),
        _joined(slopes, count),
        _joined(costs, count),
        is_open,
    )
    stacked = torch.cat(points)[:count] if points else box.lower.flatten(1)[:0]
    return scores, stacked.cpu().numpy()


def _ready(problem: Subproblems) -> tuple[Subproblems, Relaxations]:
    """With no more than a backward pass needs."""
    if not relu_like(problem.graph):
        return problem, problem.relaxations()
    own = {index: alpha.clone() for index, alpha in problem.alphas.items()}
    return replace(problem.packed(), alphas=own).settled()


def _at(table: Tensor, row: Tensor) -> Tensor:
    """``[S, B, N]`` at ``row [B]``: ``[B, N]``; a view where there is one row."""
    if table.shape[0] == 1:
        return table[0]
    return table[row, torch.arange(len(row), device=row.device)]


def _joined(tables: list[dict[int, Tensor]], count: int) -> dict[int, Tensor]:
    """One table per activation for the whole batch, from the tables of its parts."""
    if len(tables) == 1:
        return {index: table[:count] for index, table in tables[0].items()}
    return {index: torch.cat([table[index] for table in tables])[:count] for index in tables[0]}
