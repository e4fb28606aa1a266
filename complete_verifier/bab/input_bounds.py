"""Bound many input boxes at once and say what follows for the clauses.

Shape letters: B boxes, I inputs (flat), S functionals, K constraints, C clauses.

Boxes are bounded in tiles small enough that the coefficients of a backward pass stay in the
processor's cache: for the small networks that input splitting is good at, passes over memory are
what the time goes to otherwise.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.forward import (
    AffineForm,
    forward_relaxations,
    functional_forms,
    most_symbols,
)
from auto_LiRPA_patches.engine.options import BoundOptions, never
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_relaxations, interval_rows
from auto_LiRPA_patches.errors import NonFiniteBoundError
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab.alpha_trial import AlphaEffort, Trials, boxes_below
from complete_verifier.bab.input_contraction import Planes, contract
from complete_verifier.bab.input_pool import Boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.region_group import RegionGroup
from complete_verifier.bounds.output_rows import output_rows
from complete_verifier.bounds.rounding import allowance_of, coefficient_rounding
from complete_verifier.model.network import Network

# Coefficient elements of a tile on the CPU if all neurons were unstable; and of one backward pass,
# whose few tensors have to stay in a cache that other ranks use too. Measured, ACAS Xu property 6,
# seconds on one rank and on two: tiles of 2**20 uncut 1.44 and 0.88; passes of 2**19 in tiles of
# 2**20 1.41 and 0.85, in 2**21 1.36 and 0.85, in 2**22 1.35 and 0.84; 2**18 in 2**20 1.6 and 0.94.
_TILE_ELEMENTS = 1 << 21
_PASS_ELEMENTS = 1 << 19
# Fewer rows of a matrix product than this do not pay for reading the matrix.
_LEAST_PRODUCT = 1024
_BLOCK_BYTES = 1 << 28


@dataclass(frozen=True)
class Bounded:
    """Boxes with new margins, excluded clauses and scores, and where to look for a violation.

    Attributes:
        boxes: B boxes.
        corners: ``[B, I]`` the corner of each box where the bound of the constraint that a split
            should improve is attained.
    """

    boxes: Boxes
    corners: Tensor

    def select(self, index: Tensor) -> Bounded:
        """The boxes at ``index``."""
        return Bounded(self.boxes.select(index), self.corners[index])

    def put(self, index: Tensor, part: Bounded) -> Bounded:
        """The same with other boxes at the positions ``index``."""
        return Bounded(
            self.boxes.put(index, part.boxes), self.corners.index_copy(0, index, part.corners)
        )

    @staticmethod
    def concatenate(parts: list[Bounded]) -> Bounded:
        """All boxes of at least one part, in order."""
        return Bounded(
            Boxes.concatenate([part.boxes for part in parts]),
            torch.cat([part.corners for part in parts]),
        )


@dataclass(frozen=True)
class _Functionals:
    """What is known of a tile's functionals.

    Attributes:
        lower: ``[S, B]`` float64, the best lower bounds.
        coeffs: ``[S, B, I]`` slopes of a plane below each functional.
        least: ``[S, B]`` float64, the plane's smallest value over the box; -inf without a plane.
    """

    lower: Tensor
    coeffs: Tensor
    least: Tensor

    def select(self, index: Tensor) -> _Functionals:
        """A copy for the boxes at ``index``."""
        return _Functionals(self.lower[:, index], self.coeffs[:, index], self.least[:, index])


class InputBounds:
    """Bounds of the regions' functionals over boxes inside them."""

    def __init__(
        self,
        network: Network,
        group: RegionGroup,
        options: BoundOptions,
        settings: InputSplitSettings,
        threshold: float,
        *,
        in_blocks: bool = False,
    ) -> None:
        """Prepare.

        Args:
            group: the regions; every clause has at least one constraint.
            options: cut, sparsity and clock, which is asked before every tile. In blocks it is
                not, since a round has to repeat its bits.
            settings: method.
            threshold: margin a proof must exceed.
            in_blocks: the bits of a block of boxes (`begin_block`) depend on nothing but these.
        """
        self.in_blocks = in_blocks
        self._late = never if in_blocks else options.out_of_time
        self.graph = network.graph
        self.settings = settings
        self.threshold = threshold
        if in_blocks:
            # What a pass may hold follows from the memory at hand; bits must not. A block is one
            # rank's, so that its rows need no tiles of their own.
            options = replace(options, memory_bytes=_BLOCK_BYTES, tile_rows=None, alone=False)
        self.options = replace(
            options,
            intermediate="ibp" if settings.bounding in ("ibp", "crown-ibp") else "crown",
            out_of_time=never,
            progress=None,
        )
        self.group = group
        rows = self.rows = output_rows(group.clauses, network.num_outputs)
        root = self.root = group.box(network.graph)
        like = root.lower
        self._effort = AlphaEffort(iterations=settings.alpha_steps)
        self._trials = Trials()
        self.matrix = rows.matrix(like)
        self.root_width = (root.upper - root.lower).flatten(1)
        output = Relaxations(self.graph, root).interval(self.graph.output)
        slack = coefficient_rounding(rows, self.matrix, output)
        self.slack = torch.from_numpy(slack).to(like.device)
        self.row_of = torch.from_numpy(rows.row_of).to(like.device)
        self.clause_of = torch.from_numpy(rows.clause_of).to(like.device)
        self.one_each = np.array_equal(rows.clause_of, np.arange(rows.num_clauses))
        self.rhs = torch.from_numpy(rows.rhs).to(like.device)
        self.strict = torch.from_numpy(rows.strict).to(like.device)

    @property
    def tile(self) -> int:
        """Boxes bounded together."""
        if self.matrix.device.type != "cpu":
            return 1 << 30
        widths = [num_elements(self.graph.nodes[node].shape) for node in self.graph.bounded]
        widest = self._widest
        if self.settings.forward:
            # Over all layers about as many neurons are unstable as one layer has.
            symbols = widest + num_elements(self.graph.input_shape)
            return max(16, _TILE_ELEMENTS // (symbols * widest))
        rows = max([self.rows.num_rows, *(2 * width for width in widths)])
        return max(16, _TILE_ELEMENTS // (rows * widest))

    @property
    def _widest(self) -> int:
        return max(num_elements(node.shape) for node in self.graph.nodes)

    def _in_cache(self, boxes: int) -> BoundOptions:
        """The options for a tile, its backward passes cut so that each stays in the cache."""
        if self.matrix.device.type != "cpu":
            return self.options
        rows = max(_PASS_ELEMENTS // (boxes * self._widest), _LEAST_PRODUCT // boxes, 1)
        return replace(self.options, chunk_rows=min(self.options.chunk_rows, rows))

    def begin_block(self, effort: AlphaEffort) -> None:
        """Before boxes whose bits are to depend on nothing that was learnt of others.

        Args:
            effort: how α-CROWN is used on them.
        """
        self._effort = effort

    def trials(self) -> Trials:
        """What came of α-CROWN since this was asked last."""
        found, self._trials = self._trials, Trials()
        return found

    def briefly(self, boxes: Boxes) -> Bounded:
        """`bound` without α-CROWN: of boxes most of which are thrown away."""
        before, self._effort = self._effort, self._effort.stopped()
        try:
            return self.bound(boxes)
        finally:
            self._effort = before

    def bound(self, boxes: Boxes) -> Bounded:
        """Bound boxes; what was known of them stays known.

        Returns:
            The same boxes in the same order. A bound that is not finite excludes nothing; of
            boxes whose turn comes after the time limit nothing new is known.

        Raises:
            SoundnessError: bounds cross by more than rounding.
        """
        with self._without_gradient():
            return Bounded.concatenate([self._tile(part) for part in _cut(boxes, self.tile)])

    def _without_gradient(self) -> AbstractContextManager[object]:
        """For a tile; where no α is optimised, its calls need no bookkeeping for autograd at all.

        That takes an eighth of what is done once per tile off (measured, ACAS Xu, 6.2 to 5.4 ms).
        What comes out is used beyond it, by copies: a later round may optimise α of the same boxes.
        """
        return torch.no_grad() if self._effort.is_on else torch.inference_mode()

    def _tile(self, boxes: Boxes) -> Bounded:
        if self._late(0.0):
            return self._unbounded(boxes)
        try:
            return self._finite_tile(boxes)
        except NonFiniteBoundError:
            if boxes.count == 1:
                return self._unbounded(boxes)
        return self._apart(boxes)

    def _apart(self, boxes: Boxes) -> Bounded:
        """Bound boxes together that fail together, so that none takes its neighbours' bounds.

        Those whose intervals overflow are left unbounded; where intervals tell nothing, halves of
        the tile are tried.
        """
        state = Relaxations(self.graph, self._interval(boxes))
        state.interval(self.graph.output)
        finite = torch.ones(boxes.count, dtype=torch.bool, device=boxes.path.device)
        for bounds in state.bounds.values():
            for side in (bounds.lower, bounds.upper):
                finite &= torch.isfinite(side).flatten(1).all(dim=1)
        if bool(finite.all()):
            half = (boxes.count + 1) // 2
            return Bounded.concatenate([self._tile(part) for part in _cut(boxes, half)])
        overflowing = self._unbounded(boxes.select(~finite))
        if not bool(finite.any()):
            return overflowing
        order = torch.cat([(~finite).nonzero(), finite.nonzero()]).squeeze(1)
        mixed = Bounded.concatenate([overflowing, self._tile(boxes.select(finite))])
        return mixed.select(order.argsort())

    def _finite_tile(self, boxes: Boxes) -> Bounded:
        state, form = self._relaxations(boxes)
        wanted = self._wanted_rows(boxes)
        known = self._functionals(state, form, wanted)
        bounded = self._conclude(boxes, known)
        return self._try_alpha(state, known, boxes, bounded) if self._effort.is_on else bounded

    def _try_alpha(
        self, state: Relaxations, known: _Functionals, boxes: Boxes, bounded: Bounded
    ) -> Bounded:
        """`bounded` with α-CROWN where closing its open boxes saves more than it costs."""
        still = bounded.boxes.is_open.nonzero().squeeze(1)
        below = boxes_below(boxes.margin[still], bounded.boxes.margin[still], self.threshold)
        if not self._effort.worth_trying(below):
            return bounded
        size = self._effort.sample
        sample, rest = still[:size], still[size:]
        bounded = self._improve(state, bounded, known, sample)
        solved = ~bounded.boxes.is_open[sample]
        paid = self._effort.pays(below[:size][solved], sample.numel())
        self._trials = self._trials.and_one(paid)
        if not paid:
            self._effort = self._effort.stopped()
            return bounded
        return self._improve(state, bounded, known, rest) if rest.numel() else bounded

    def _relaxations(self, boxes: Boxes) -> tuple[Relaxations, AffineForm | None]:
        """Bounds of inner nodes; with the output's form where they are propagated forwards."""
        box = self._interval(boxes)
        if self.settings.bounding == "ibp":
            return Relaxations(self.graph, box), None
        if self.settings.forward:
            symbols = most_symbols(self.graph, boxes.count, self.options)
            return forward_relaxations(self.graph, box, symbols)
        return crown_relaxations(self.graph, box, self._in_cache(boxes.count)), None

    def _interval(self, boxes: Boxes) -> Interval:
        shape = (boxes.count, *self.graph.input_shape)
        return Interval(boxes.lower.view(shape), boxes.upper.view(shape))

    def _wanted_rows(self, boxes: Boxes) -> Tensor:
        """``[S']`` functionals that some open clause of some box uses."""
        in_use = ~boxes.excluded.all(dim=0)
        wanted = torch.zeros(self.rows.num_rows, dtype=torch.bool, device=in_use.device)
        wanted[self.row_of[in_use[self.clause_of]]] = True
        return wanted.nonzero().squeeze(1)

    def _functionals(
        self, state: Relaxations, form: AffineForm | None, wanted: Tensor
    ) -> _Functionals:
        """What is known of the wanted functionals; -inf and 0 of the others."""
        batch = state.box.lower.shape[0]
        rows = SpecRows(self.matrix[wanted].view(-1, *self.graph.output_shape))
        lower = self.slack.new_full((self.rows.num_rows, batch), -torch.inf)
        coeffs = self.matrix.new_zeros(self.rows.num_rows, batch, self.root_width.shape[1])
        least = lower.clone()
        if form is not None:
            forms = functional_forms(form, self.matrix[wanted], state.box)
            lower[wanted], coeffs[wanted] = forms.lower.double(), forms.planes
            least[wanted] = forms.lower.double()
        if self.settings.backward:
            found: list[Tensor] = []

            def observe(index: int, tensor: Tensor) -> None:
                if index == 0:
                    found.append(tensor.flatten(2))

            own = lower_bounds(
                self.graph,
                state.box,
                self.graph.output,
                rows,
                lambda index: state.lines(index, None),
                observe,
            )
            lower[wanted] = torch.fmax(lower[wanted], own.double())
            coeffs[wanted] = found[0] if found else 0.0
            least[wanted] = own.double()
        if self.settings.bounding == "ibp" or self.settings.ibp_enhancement:
            interval = interval_rows(state, rows).double()
            lower[wanted] = torch.fmax(lower[wanted], interval)
        agreed = self.graph.neurons.agreed
        return _Functionals(agreed(lower), agreed(coeffs), agreed(least))

    def _conclude(self, boxes: Boxes, known: _Functionals) -> Bounded:
        """Margins, excluded clauses, what is left of the boxes, scores and corners."""
        lower, of = known.lower, self.clause_of
        slack = self.slack.index_select(1, self.group.region_of(boxes))
        taken_off = slack + self._allowance(boxes, lower, known.coeffs)
        margins = self._margins(lower - taken_off)  # [B, K]
        impossible = (margins > self.threshold) | (self.strict & (margins >= self.threshold))
        places = of.expand_as(margins)
        found = torch.zeros_like(boxes.excluded, dtype=torch.float64)
        found.scatter_reduce_(1, places, impossible.double(), "amax")
        planes = Planes(
            known.coeffs.index_select(0, self.row_of).transpose(0, 1).double(),
            self._margins(known.least - taken_off) - self.threshold,
            of,
            self.one_each,
        )
        left = contract(boxes.lower, boxes.upper, planes, boxes.excluded | (found > 0))
        boxes = replace(boxes, lower=left.lower, upper=left.upper, excluded=left.empty)
        margins = torch.maximum(margins, left.least + self.threshold)
        best = torch.full_like(found, -torch.inf).scatter_reduce_(1, places, margins, "amax")
        margin = best.masked_fill(left.empty, torch.inf).amin(dim=1)
        if self.settings.compare_with_old_bounds:
            margin = torch.maximum(margin, boxes.margin)
        score, corners = self._branching(boxes, margins, left.empty, known.coeffs)
        return Bounded(replace(boxes, margin=margin, score=score), corners)

    def _margins(self, lower: Tensor) -> Tensor:
        """Lower bounds ``[S, B]`` -> margins ``[B, K]``; -inf where a bound is not finite."""
        finite = torch.nan_to_num(lower, nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        return finite.index_select(0, self.row_of).T - self.rhs

    def _allowance(self, boxes: Boxes, lower: Tensor, coeffs: Tensor) -> Tensor:
        """What rounding may account for, ``[S, B]`` float64; see `rounding_allowance`."""
        center = (boxes.lower / 2 + boxes.upper / 2).view(-1, *self.graph.input_shape)
        outputs = self.graph.forward(center).flatten(1).abs()
        largest = torch.maximum(boxes.lower.abs(), boxes.upper.abs())
        size = (coeffs.abs() * largest).sum(-1) + self.matrix.abs() @ outputs.T
        bound = torch.where(torch.isfinite(lower), lower.abs(), torch.zeros_like(lower))
        return allowance_of(self.graph.neurons.agreed(size + bound.to(size.dtype)))

    def _branching(
        self, boxes: Boxes, margins: Tensor, excluded: Tensor, coeffs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores ``[B, I]`` and corners ``[B, I]``.

        Halving input i raises the bound's plane by |coefficient| * width / 2 in one half. Among
        the constraints of open clauses the one counts whose bound a split can bring highest.
        """
        settings = self.settings
        width = boxes.upper - boxes.lower
        naive = self._naive(boxes)
        plane = coeffs.index_select(0, self.row_of).transpose(0, 1)  # [B, K, I]
        gain = plane.abs().clamp(min=settings.sb_coeff_thresh) * (width / 2).unsqueeze(1)
        idle = excluded[:, self.clause_of]
        reach = gain.amax(dim=2) + settings.sb_margin_weight * margins.to(gain.dtype)
        chosen = reach.masked_fill(idle, -torch.inf).argmax(dim=1)
        index = chosen[:, None, None].expand(-1, 1, plane.shape[2])
        corners = torch.where(plane.gather(1, index)[:, 0] >= 0, boxes.lower, boxes.upper)
        if settings.heuristic == "naive":
            return naive, corners
        if settings.sb_sum:
            smart = gain.masked_fill(idle.unsqueeze(2), 0.0).sum(dim=1)
        else:
            smart = gain.gather(1, index)[:, 0]
        usable = torch.isfinite(smart).all(dim=1, keepdim=True)
        return torch.where(usable, smart, naive), corners

    def _improve(
        self, state: Relaxations, bounded: Bounded, known: _Functionals, still: Tensor
    ) -> Bounded:
        """α-CROWN on the boxes of ``still``."""
        part = bounded.select(still)
        wanted = self._wanted_rows(part.boxes)
        known_bounds = {node: state.bounds[node].select(still) for node in self.graph.bounded}
        start = crown_relaxations(
            self.graph, state.box.select(still), self.options, known=known_bounds
        )
        result = optimize_alpha(
            start,
            SpecRows(self.matrix[wanted].view(-1, *self.graph.output_shape)),
            lambda bounds: torch.ones_like(bounds, dtype=torch.bool),
            self.options,
            self.settings.alpha,
        )
        better = known.select(still)
        better.lower[wanted] = torch.fmax(better.lower[wanted], result.lower.double())
        improved = self._conclude(part.boxes, better)
        return bounded.put(still, improved)

    def _unbounded(self, boxes: Boxes) -> Bounded:
        """Boxes of which no bound is known: the widest input is split, the centre tried."""
        return Bounded(replace(boxes, score=self._naive(boxes)), boxes.lower / 2 + boxes.upper / 2)

    def _naive(self, boxes: Boxes) -> Tensor:
        """``[B, I]`` the share of the region's width that each box has."""
        whole = self.root_width.index_select(0, self.group.region_of(boxes))
        return torch.nan_to_num((boxes.upper - boxes.lower) / whole, nan=0.0, posinf=0.0)


def _cut(boxes: Boxes, size: int) -> list[Boxes]:
    """`boxes` in runs of at most `size`, about equally long."""
    if boxes.count <= size:
        return [boxes]
    even = math.ceil(boxes.count / math.ceil(boxes.count / size))
    places = torch.arange(boxes.count, device=boxes.path.device)
    return [boxes.select(part) for part in places.split(even)]
