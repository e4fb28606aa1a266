"""Ranks that keep parts of the weights hold no weight whole while they load a network.

By the kernel's count of memory that no file stands behind, sampled while loading. A failure means
that a layer has to fit into each rank's memory, however many ranks share it.
"""

from __future__ import annotations

import gzip
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.model import network as loading
from complete_verifier.model.constant_store import ConstantStore
from complete_verifier.model.host_memory import give_back
from complete_verifier.model.network import load_network
from tests.distributed.ranks import run_ranks

WIDTH, DEPTH = 1536, 3
LAYER = 4 * WIDTH * WIDTH
MIB = 1 << 20
STATUS = Path("/proc/self/status")

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not STATUS.exists(), reason="the kernel's count is Linux's"),
]


@dataclass(frozen=True)
class Way:
    """How a network is loaded.

    Attributes:
        file: in the test's folder.
        tp: whether neurons are split; else every parameter is cut (fsdp).
        double: in float64.
        in_memory: the bug to be caught: as one rank loads.
    """

    file: str
    tp: bool = False
    double: bool = False
    in_memory: bool = False


WAYS = {
    "fsdp": Way("gemm.onnx"),
    "fsdp, gzipped": Way("gemm.onnx.gz"),
    "fsdp, beside": Way("matmul.onnx"),
    "tp": Way("gemm.onnx", tp=True),
    "tp, beside": Way("matmul.onnx", tp=True),
    "tp, double": Way("gemm.onnx", tp=True, double=True),
    "tp, in memory": Way("gemm.onnx", tp=True, in_memory=True),
    "fsdp, in memory": Way("matmul.onnx", in_memory=True),
}


def _write(path: Path, operator: str, width: int) -> None:
    """Square layers: typed data for x Wᵀ within the file, or matrices for x W beside it."""
    random = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"
    for number in range(DEPTH):
        matrix = random.standard_normal((width, width), dtype=np.float32) / np.float32(width) ** 0.5
        tensor = numpy_helper.from_array(matrix, f"W{number}")
        if number == 1 and operator == "Gemm":  # as float_data, which is packed alike
            tensor.ClearField("raw_data")
            tensor.float_data.extend(matrix.ravel().tolist())
        constants.append(tensor)
        attributes = {"transB": 1} if operator == "Gemm" else {}
        result = "y" if number == DEPTH - 1 else f"h{number}"
        nodes.append(helper.make_node(operator, [value, f"W{number}"], [result], **attributes))
        value = f"r{number}"
        nodes.append(helper.make_node("Relu", [result], [value]))
    sides = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, width]) for name in "xy"
    ]
    graph = helper.make_graph(nodes[:-1], "mlp", sides[:1], sides[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, path, save_as_external_data=operator == "MatMul", location=f"{path.stem}.data")


def _own_memory() -> int:
    lines = STATUS.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@contextmanager
def _watched(most: list[int]) -> Iterator[None]:
    """Put the largest growth of this process's own memory within the block into `most`."""
    before, over = _own_memory(), threading.Event()

    def watch() -> None:
        while not over.wait(0.0005):
            most.append(_own_memory() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        most.append(_own_memory() - before)
        over.set()
        watcher.join()


def _load(ranks: Ranks, folder: str, way: Way) -> WeightSource:
    weights: WeightSource = OneRankWeights() if way.tp else ShardedWeights(ranks.data)
    build = BuildOptions(
        precision=torch.float64 if way.double else torch.float32, neuron_ranks=ranks.tp
    )
    store = ConstantStore(on_disk=not way.in_memory)
    with mock.patch.object(loading, "ConstantStore", lambda **_: store):
        load_network(Path(folder) / way.file, weights, check=False, build=build)
    return weights


def load(ranks: Ranks, folder: str, names: list[str]) -> dict[str, tuple[int, int, list[Tensor]]]:
    """Most memory beyond that before, bytes of the parts kept in it, and some of their numbers."""
    _load(ranks, folder, Way("small.onnx", tp=ranks.tp.size > 1))  # imports
    found = {}
    for name in names:
        give_back(1 << 30)
        most: list[int] = []
        with _watched(most):
            weights = _load(ranks, folder, WAYS[name])
        # Slices of fsdp lie where the other ranks of the host read them.
        kept = weights.local_bytes if WAYS[name].tp else 0
        numbers = [tensor.reshape(-1)[:: 1 << 12].float().clone() for tensor in weights.held()]
        found[name] = max(most), kept, numbers
        ranks.world.barrier()
        del weights
    return found


def test_no_weight_is_whole_while_ranks_load_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is freed goes back at once; else glibc keeps up to two layers by and by.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MIB // 2))
    _write(tmp_path / "small.onnx", "Gemm", 8)
    _write(tmp_path / "gemm.onnx", "Gemm", WIDTH)
    _write(tmp_path / "matmul.onnx", "MatMul", WIDTH)
    packed = tmp_path / "gemm.onnx.gz"
    with (tmp_path / "gemm.onnx").open("rb") as plain, gzip.open(packed, "wb", 1) as stream:
        shutil.copyfileobj(plain, stream)
    for tp in (1, 2):
        names = [name for name, way in WAYS.items() if way.tp == (tp > 1)]
        for found in run_ranks(load, 2, str(tmp_path), names, tp=tp, timeout=400):
            for name, (most, kept, _) in found.items():
                beyond, where = most - kept, f"{name}: {(most - kept) / MIB:.1f} MiB beyond parts"
                if WAYS[name].in_memory:
                    assert beyond > LAYER, f"{where}: a whole layer was not noticed"
                else:
                    assert beyond < LAYER, where
            alike = {
                "fsdp": "fsdp, gzipped",
                "tp": "tp, in memory",
                "fsdp, beside": "fsdp, in memory",
            }
            for one, other in alike.items():
                if one in found:
                    pairs = zip(found[one][2], found[other][2], strict=True)
                    assert all(torch.equal(a, b) for a, b in pairs)
