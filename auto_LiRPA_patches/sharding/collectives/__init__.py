"""Let ranks exchange tensors and agree on numbers; the only package that uses torch.distributed.

`start(mesh)` gives a `Ranks`: one `Communicator` for the world and one along each mesh axis. A
group of one rank is a `Communicator` too; it moves nothing, and a world of one never initialises
torch.distributed. Callers hold a `Communicator` and never ask how many ranks there are.

What every collective here promises:

- every rank of the group reaches it, in the same order (the callers' duty), within the timeout
  given to `start`; otherwise it ends with `RankMismatchError`, never with a hang;
- it carries a name, "<group>.<operation>", visible in torch.profiler traces;
- it carries **no gradient**, and refuses a tensor that requires one: torch's own collectives would
  let the local gradient through unreduced and say nothing. Those of `differentiable` have an
  adjoint, and say which;
- metadata (integers, objects) travels in CPU memory over gloo, also beside NCCL, so that reading
  it never stalls an accelerator's stream.

R in the tables of this package is the number of ranks in the group.
"""

from auto_LiRPA_patches.sharding.collectives.communicator import Communicator, PendingGather
from auto_LiRPA_patches.sharding.collectives.differentiable import (
    gather_rows,
    gather_rows_of_whole,
    share_among_tiles,
    sum_over_ranks,
)
from auto_LiRPA_patches.sharding.collectives.replicated import (
    of_first_rank,
    own_columns,
    total_of_parts,
)
from auto_LiRPA_patches.sharding.collectives.world import Backend, Ranks, start, stop

__all__ = [
    "Backend",
    "Communicator",
    "PendingGather",
    "Ranks",
    "gather_rows",
    "of_first_rank",
    "own_columns",
    "gather_rows_of_whole",
    "share_among_tiles",
    "start",
    "stop",
    "sum_over_ranks",
    "total_of_parts",
]
