"""Refine the bounds of inner neurons by branch and bound, from the first layers to the last.

Root bounds of deep layers are loose because those below them are. Here every unstable neuron's two
bounds are functionals of their own: the network up to its layer is branched on for a few rounds
(`neuron_tree`), and the layers above start from what came of it. What α,β-CROWN's `bab-refine` asks
of a MIP solver for each neuron is done for a whole layer at once.

Claim: every bound holds over the whole box; it is the smallest of bounds whose subproblems cover
the box. Reference: Wang et al. 2021 (arXiv 2103.06624), theorem 3.1, for each of them; Zhang et al.
2022 (arXiv 2208.05740), section 3.2, for refining inner bounds before branching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.subproblems import BetaOptions, relu_like
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.operators.shape import Movement
from auto_LiRPA_patches.sharding.collectives import Communicator
from complete_verifier.bab.neuron_tree import NeuronTree, TreeEffort
from complete_verifier.bab.partners import Partners
from complete_verifier.bounds.output_rows import OutputRows
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.rounding import rounding_allowance

OutOfTime = Callable[[float], bool]
"""Whether a time passes within so many seconds from now."""


@dataclass(frozen=True, kw_only=True)
class RefineSettings:
    """How much is refined.

    Attributes:
        rounds: splits of each bound's worst subproblem.
        first_iterations: steps of α before the first split.
        beta: steps of α and β after each split.
        batch_size: subproblems bounded together; also limits what is stored.
        share: fraction of the time left that refinement may take (`solver.mip.
            refine_neuron_time_percentage`); layers share it evenly.
        synchronous: see `bab.force_synchronous`; only the instance's own time limit counts then.
    """

    rounds: int = 20
    first_iterations: int = 50
    beta: BetaOptions = BetaOptions(iterations=20, alpha_rate=0.1, beta_rate=0.1)
    batch_size: int = 500
    share: float = 0.8
    synchronous: bool = False


@dataclass(frozen=True)
class RefinePass:
    """A run of branch and bound, and a refinement where that decided nothing.

    Attributes:
        share: fraction of the time left that the run may take; 0 leaves it out.
        settings: of the refinement.
    """

    share: float
    settings: RefineSettings


@dataclass(frozen=True)
class RefineContext:
    """The run around a refinement.

    Attributes:
        bounds: memory, progress and the instance's clock, which gives way to one of `clock`
            unless the run is synchronous.
        partners: ranks that share the neurons; where they compute in step, all do the same work.
        clock: makes of a fraction of the time left the question whether it has passed. Asked as
            the clock of `BabContext.bounds` is.
    """

    bounds: BoundOptions
    partners: Partners
    clock: Callable[[float], OutOfTime]

    def say(self, text: str) -> None:
        """Report progress."""
        if self.bounds.progress is not None:
            self.bounds.progress(text)


def refine(root: Root, context: RefineContext, settings: RefineSettings) -> Root:
    """The root with bounds of inner neurons at least as tight; the same on all ranks.

    Args:
        root: of a network that `can_refine`.

    Raises:
        SoundnessError: a lower bound above an upper one.
    """
    todo = [node for node in root.graph.bounded if node not in root.graph.interval_exact]
    limit = context.bounds.out_of_time
    whole = limit if settings.synchronous else context.clock(settings.share)
    for place, node in enumerate(todo):
        if context.partners.pool.agree_any(whole(0.0)):
            break
        own = limit
        if not settings.synchronous:
            own = _either(whole, context.clock(settings.share / (len(todo) - place)))
        work = replace(context, bounds=replace(context.bounds, out_of_time=own))
        root = _refine_node(root, node, work, settings)
    return root.without_inactive()


def _either(one: OutOfTime, other: OutOfTime) -> OutOfTime:
    """Whether one of two times has passed."""
    return lambda ahead: one(ahead) or other(ahead)


def can_refine(graph: Graph) -> bool:
    """Whether every relaxed node is a ReLU, and no layer is split by neuron over ranks."""
    return relu_like(graph) and not graph.neurons.split


def fully_connected(graph: Graph) -> bool:
    """Whether neurons are computed by Linear layers alone."""
    kinds = (Linear, Relu, Movement)
    return all(isinstance(node.operator, kinds) for node in graph.nodes[1:])


def _refine_node(root: Root, node: int, context: RefineContext, settings: RefineSettings) -> Root:
    own = root.bounds[node]
    lower, upper = own.lower.flatten(1)[0].clone(), own.upper.flatten(1)[0].clone()
    elements = _widest_first(lower, upper)
    if elements.numel() == 0:
        return root
    partners = context.partners
    # Where every use of a layer is a collective, all ranks bound every neuron.
    ranks = Communicator.single() if partners.in_step else partners.pool
    mine = elements[ranks.rank :: ranks.size]

    def work() -> None:
        for block, found in _blocks(root, node, mine, context, settings):
            lower[block] = lower[block].maximum(found[: len(block)])
            upper[block] = upper[block].minimum(-found[len(block) :])

    with partners.apart(root.graph.weights):
        failure = partners.attempt(work)
    if ranks.agree_any(failure is not None):
        partners.raise_together(failure)
    every = torch.cat([elements[rank :: ranks.size] for rank in range(ranks.size)])
    sizes = [len(elements[rank :: ranks.size]) for rank in range(ranks.size)]
    ends = ranks.all_gather_uneven(torch.stack([lower[mine], upper[mine]], dim=1), sizes)
    lower[every], upper[every] = ends.unbind(dim=1)
    shape, name = own.lower.shape, root.graph.nodes[node].name
    tighter = Interval(lower.view(shape), upper.view(shape)).require_sound(f"refined {name}")
    left = int(((lower < 0) & (upper > 0)).sum())
    context.say(f"refinement of {name}: {left} of {len(elements)} unstable neurons left")
    return replace(root, bounds={**root.bounds, node: tighter})


def _blocks(
    root: Root, node: int, elements: Tensor, context: RefineContext, settings: RefineSettings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Neurons ``[F]`` and their bounds ``[2F]``, block by block, until time runs out.

    Smaller blocks follow one that memory did not hold, where no other rank waits for this one. A
    neuron that does not fit by itself ends the layer: neurons keep the bounds they had.
    """
    partners, name = context.partners, root.graph.nodes[node].name
    may_halve = not (partners.in_step or partners.layers_split)
    waiting = deque(elements.split(max(1, settings.batch_size // 2)))
    while waiting and not context.bounds.out_of_time(0.0):
        block = waiting.popleft()
        try:
            found = _bounds_of(root, node, block, context, settings)
        except Exception as error:
            if not may_halve or not ran_out_of_memory(error):
                raise
            most = len(block) // 2
        else:
            yield block, found
            continue
        # Only now is the error forgotten, and with it the frames that hold what was computed.
        if most == 0:
            context.bounds.told(f"memory ran out: {name} is not refined further")
            return
        context.bounds.told(f"memory ran out: {most} neurons of {name} refined at a time")
        waiting = deque(torch.cat([block, *waiting]).split(most))


def _widest_first(lower: Tensor, upper: Tensor) -> Tensor:
    """The unstable neurons, those whose relaxation encloses the largest area first."""
    unstable = ((lower < 0) & (upper > 0)).nonzero().squeeze(1)
    area = -lower[unstable] * upper[unstable]
    return unstable[area.argsort(descending=True, stable=True)]


def _bounds_of(
    root: Root, node: int, elements: Tensor, context: RefineContext, settings: RefineSettings
) -> Tensor:
    """Lower bounds ``[2F]`` of the neurons ``elements [F]`` and of their negatives."""
    beta = settings.beta
    if settings.synchronous:
        beta = replace(beta, prune_ratio=None)
    effort = TreeEffort(
        rounds=settings.rounds,
        first=replace(beta, iterations=settings.first_iterations),
        beta=beta,
        synchronous=settings.synchronous,
    )
    tree = NeuronTree(
        _root_of(root, node, elements, context.bounds), context.bounds, context.partners, effort
    )
    # Rounded towards what proves less.
    found, like = tree.run(), root.box.lower
    return torch.nextafter(found.to(like), like.new_tensor(-torch.inf))


def _root_of(root: Root, node: int, elements: Tensor, options: BoundOptions) -> Root:
    """Branching starts here for ``elements`` and their negatives: one clause for each."""
    graph = replace(root.graph, nodes=root.graph.nodes[: node + 1], output=node)
    state = Relaxations(
        graph, root.box, {index: own for index, own in root.features.items() if index < node}
    )
    for below in graph.bounded:
        state.set_bounds(below, root.bounds[below])
    rows = _one_hot_rows(elements, num_elements(graph.output_shape))
    own = root.bounds[node].flatten()
    lower = torch.cat([own.lower[0, elements], -own.upper[0, elements]])
    slack = rounding_allowance(state, rows.matrix(lower), lower.unsqueeze(1), options)
    return Root(
        graph=graph,
        box=root.box,
        features=dict(state.features),
        bounds={below: root.bounds[below] for below in graph.bounded},
        alphas=state.initial_alphas(rows.num_rows),
        rows=rows,
        lower=lower.double().cpu().numpy(),  # bounds that stand already, with nothing to take off
        slack=slack,
        excluded=np.zeros(rows.num_clauses, dtype=bool),
    )


def _one_hot_rows(elements: Tensor, width: int) -> OutputRows:
    """``z_e <= 0`` for every element, then ``-z_e <= 0``: one clause and one row each."""
    count = 2 * len(elements)
    exact = np.zeros((count, width))
    place = np.arange(count)
    sign = np.where(place < len(elements), 1.0, -1.0)
    exact[place, np.tile(elements.cpu().numpy(), 2)] = sign
    return OutputRows(
        exact=exact,
        row_of=place,
        clause_of=place,
        rhs=np.zeros(count),
        strict=np.zeros(count, dtype=bool),
        num_clauses=count,
    )
