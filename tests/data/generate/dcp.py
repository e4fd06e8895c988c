"""Distributed checkpoints of PyTorch (DCP), written by torch on the CPU in 1, 2 and 4 processes.

    pip install torch==2.15.0 numpy==2.4.6 safetensors==0.8.0
    python dcp.py

It rewrites ../dcp/*. Each case is a directory as `torch.distributed.checkpoint.save` writes it, and
`<case>.expected.safetensors` has the tensors that a reader must give: what `dcp_to_torch_save` makes of it, under the
names that `.metadata` has. What is no tensor is left out.
"""

import os
import shutil
import tempfile
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch.distributed._shard.sharded_tensor import ShardedTensor, Shard as LocalShard
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "dcp")


def noise(seed, *shape, dtype=torch.float32):
    bits = torch.randint(0, 256, (*shape, torch.empty((), dtype=dtype).element_size()),
                         generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape)


def one(rank, world):
    """Values of many kinds in one process."""
    return {
        "model": {
            "f32": noise(1, 3, 5), "bf16": noise(2, 4, 3, dtype=torch.bfloat16), "f16": noise(3, 7, dtype=torch.float16),
            "f8": noise(4, 6, 2, dtype=torch.float8_e4m3fn), "i64": noise(5, 3, dtype=torch.int64),
            "bool": torch.tensor([True, False, True]), "scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4),
            "transposed": noise(6, 5, 3).t(), "row": noise(7, 4, 6)[2], "parameter": torch.nn.Parameter(torch.ones(2)),
        },
        "list": [torch.arange(3), {"a": torch.arange(2)}],
        "optimizer": {"lr": 0.1, "betas": (0.9, 0.999)},
        "step": 7,
    }


def two(rank, world):
    """FSDP2 with an optimizer, and whole tensors beside it."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3, bias=False))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "rng": torch.get_rng_state()[:16], "epoch": 3}


def four(rank, world):
    """Every way to divide tensors among four processes: rows, columns, both, inner dimensions, replicas, empty parts."""
    mesh, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    # Each process has the whole tensor, of which it takes its part.
    split = {
        "rows": (noise(11, 10, 3), mesh, [Shard(0)]),
        "few_rows": (noise(12, 3, 4, dtype=torch.bfloat16), mesh, [Shard(0)]),
        "columns": (noise(13, 3, 10), mesh, [Shard(1)]),
        "both": (noise(14, 5, 7, dtype=torch.bfloat16), square, [Shard(0), Shard(1)]),
        "both_turned": (noise(15, 5, 7, dtype=torch.float16), square, [Shard(1), Shard(0)]),
        "rows_twice": (noise(16, 9, 2), square, [Shard(0), Shard(0)]),
        "replicas_of_rows": (noise(17, 5, 3), square, [Replicate(), Shard(0)]),
        "replicas": (noise(18, 3, 3), mesh, [Replicate()]),
        "inner": (noise(19, 2, 9, 3, 2, dtype=torch.bfloat16), mesh, [Shard(1)]),
        "vector": (noise(20, 9, dtype=torch.float8_e5m2), mesh, [Shard(0)]),
    }
    return {"model": {name: distribute_tensor(*how, src_data_rank=None) for name, how in split.items()}, "whole": noise(21, 4)}


def ragged(rank, world):
    """Rectangles that are no grid: each band of rows is cut at another column."""
    full = noise(31, 6, 9)
    mine = [[((0, 0), (2, 4))], [((0, 4), (2, 5)), ((2, 0), (4, 7))], [((2, 7), (1, 2))], [((3, 7), (3, 2))]][rank]
    shards = []
    for (row, column), (rows, columns) in mine:
        part = full[row:row + rows, column:column + columns].clone()
        shards.append(LocalShard(part, ShardMetadata([row, column], [rows, columns], f"rank:{rank}/cpu")))
    return {"w": ShardedTensor._init_from_local_shards(shards, full.size())}


def files(rank, world):
    """A file for each piece."""
    mesh = init_device_mesh("cpu", (world,))
    return {"a": distribute_tensor(noise(41, 4, 3), mesh, [Shard(0)], src_data_rank=None), "b": noise(42, 2), "n": 1}


CASES = {  # processes, state, writer
    "one": (1, one, None),
    "two": (2, two, None),
    "four": (4, four, None),
    "ragged": (4, ragged, None),
    "files": (2, files, lambda path: FileSystemWriter(path, single_file_per_rank=False)),
    # safetensors: pieces in `sharded`, and the whole that torch makes of them.
    "hugging_face": (2, files, lambda path: HuggingFaceStorageWriter(path, save_distributed=True, enable_consolidation=True)),
}


def run(rank, name, path):
    world, state, writer = CASES[name]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    values = state(rank, world)
    if name == "hugging_face":
        del values["n"]
    dcp.save(values, checkpoint_id=path, storage_writer=writer and writer(path))
    dist.destroy_process_group()


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    for name, (world, _, _) in CASES.items():
        # The path that torch stores is not that of the machine.
        os.chdir(OUT)
        mp.spawn(run, (name, name), nprocs=world)
        if name == "hugging_face":  # safetensors, of which the expected values are those of `files`
            continue
        with tempfile.NamedTemporaryFile() as file:
            dcp_to_torch_save(name, file.name)
            flat, _ = flatten_state_dict(torch.load(file.name, weights_only=False))
        tensors = {k: v.detach().contiguous().clone() for k, v in flat.items() if isinstance(v, torch.Tensor)}
        save_file(tensors, f"{name}.expected.safetensors")
        print(name, len(tensors), "tensors")


if __name__ == "__main__":
    main()
