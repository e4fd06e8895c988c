"""Files of the processes of FSDP, as verl writes them: `torch.save` of the sharded state dict of each process, on the CPU.

    pip install torch==2.15.0 numpy==2.4.6 safetensors==0.8.0
    python fsdp_ranks.py
    pip install torch==2.6.0          # in another environment: meshes have another form there
    python fsdp_ranks.py torch_2_6

It rewrites ../fsdp/CASE, a directory with a file for each process, and ../fsdp/CASE.expected.safetensors: what
`full_tensor()` makes of the parts in the first process, and the tensors that all processes have.
"""

import os
import shutil
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fsdp")


def noise(seed, *shape, dtype=torch.float32):
    bits = torch.randint(0, 256, (*shape, torch.empty((), dtype=dtype).element_size()),
                         generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape)


def model(mesh):
    """A module divided by FSDP2, with a buffer, which all processes have."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 5, dtype=torch.bfloat16)
    module.register_buffer("buffer", noise(5, 2))
    fully_shard(module, mesh=mesh)
    return module.state_dict()


def four():
    """Five rows on four processes: the last has none. Divided columns, and fewer elements than processes."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    split = {"columns": (noise(1, 3, 7), Shard(1)), "few": (noise(3, 2), Shard(0))}
    state = {k: distribute_tensor(t, mesh, [how], src_data_rank=None) for k, (t, how) in split.items()}
    return model(mesh) | state | {"whole": noise(4, 3, dtype=torch.float16), "step": 7}


def replicas():
    """Two groups of two processes, which have the same parts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
    split = {"rows": [Replicate(), Shard(0)], "both": [Shard(1), Shard(0)], "transposed": [Shard(0), Replicate()]}
    state = {k: distribute_tensor(noise(i, 5, 3), mesh, how, src_data_rank=None) for i, (k, how) in enumerate(split.items())}
    return state | {"whole": noise(9, 3)}


def torch_2_6():
    return model(init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",)))


CASES = {"four": (4, four), "replicas": (4, replicas), "torch_2_6": (2, torch_2_6)}


def run(rank, name):
    world, make = CASES[name]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    state = make()
    torch.save(state, os.path.join(OUT, name, f"model_world_size_{world}_rank_{rank}.pt"))
    tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    full = {k: (v.full_tensor() if isinstance(v, DTensor) else v).contiguous().clone() for k, v in tensors.items()}
    if rank == 0:
        save_file(full, os.path.join(OUT, f"{name}.expected.safetensors"))
        print(name, len(full), "tensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in sys.argv[1:] or ["four", "replicas"]:
        shutil.rmtree(os.path.join(OUT, name), ignore_errors=True)
        os.makedirs(os.path.join(OUT, name))
        mp.spawn(run, (name,), nprocs=CASES[name][0])
