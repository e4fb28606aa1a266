"""Prove that a small network keeps its answer around one input, and find where it does not.

python examples/python_api.py
torchrun --standalone --nproc_per_node 2 examples/python_api.py   # half of the weights each
"""

import os

import torch
from torch import nn

from complete_verifier import Specification, Verdict, Verifier

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
x = torch.rand(8)
label = int(net(x).argmax())

several = int(os.environ.get("WORLD_SIZE", "1")) > 1  # started by torchrun
config = {"general.device": "cpu", "bab.timeout": 30, "parallel.fsdp": several}
with Verifier(config) as verifier:
    for eps in (0.01, 0.5):
        result = verifier.verify(net, Specification.linf(x, eps, label))
        if int(os.environ.get("RANK", "0")) > 0:
            continue  # every rank has the same result; one says it
        if result.verdict is Verdict.UNSAT:
            print(f"eps {eps}: class {label} everywhere in the ball")
        elif result.counterexample is not None:
            print(f"eps {eps}: outputs {result.counterexample.outputs.round(3)} inside the ball")
        else:
            print(f"eps {eps}: open, because {result.reason}")
