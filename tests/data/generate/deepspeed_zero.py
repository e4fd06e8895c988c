"""Checkpoints of DeepSpeed's ZeRO, stages 1 to 3, and what its own `zero_to_fp32.py` makes of them.

    DS_ACCELERATOR=cpu python -P deepspeed_zero.py OUT [CASE ...]

deepspeed 0.19.8, torch 2.15.0, on the CPU with gloo. OUT gets a directory for each case, as `save_checkpoint` writes it: `latest` and
`global_step1/`. `expected-CASE.safetensors` is what `get_fp32_state_dict_from_zero_checkpoint` returns, with buffers as they are stored:
it widens them to F32. What it loses is there as the module has it: the frozen parameters of stage 1.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn

OUT = Path(sys.argv[1])
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
# Case: stage, processes, element type, whether some parameters are frozen, and more options of ZeRO.
CASES = {
    "stage1": (1, 2, "bf16", False, {}),
    "stage1-frozen": (1, 2, "bf16", True, {}),
    "stage2": (2, 3, "bf16", True, {}),
    "stage3": (3, 2, "bf16", False, {}),
    "stage3-frozen": (3, 3, "bf16", True, {}),
    "stage2-one": (2, 1, "fp32", False, {}),
    "stage1-fp16-reordered": (1, 2, "fp16", False, {"round_robin_gradients": True}),
    "stage2-fp16-offload": (2, 2, "fp16", False, OFFLOAD),
    "stage3-fp16-offload": (3, 2, "fp16", False, OFFLOAD | {"offload_param": {"device": "cpu"}}),
    "stage2-aligned": (2, 3, "bf16", False, {"parameter_alignment": True}),
}


class Model(nn.Module):
    """Sizes that no number of processes divides, two groups of parameters, tied weights, and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.norm = nn.LayerNorm(5)
        self.mid = nn.Linear(5, 7)
        self.out = nn.Linear(7, 5, bias=False)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.register_buffer("table", torch.randn(3, 3))
        self.register_buffer("steps", torch.tensor([5, 7], dtype=torch.int64))

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        h = self.out(torch.relu(self.mid(h))) * self.scale
        return self.head(h).float().sum()


def run(rank, case, world, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed

    # An extension for shared memory, which would have to be compiled; gloo does without.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    # It knows no FP16 on the CPU, which torch computes with there.
    type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda _: True
    torch.manual_seed(7)
    stage, _, dtype, frozen, more = CASES[case]
    deepspeed.init_distributed("gloo")
    model = Model()
    if frozen:
        model.mid.weight.requires_grad = False
        model.norm.bias.requires_grad = False
    decay = [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]
    rest = [p for p in model.parameters() if p.ndim < 2 and p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0} | more,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": dtype == "fp16", "initial_scale_power": 4},
        "bf16": {"enabled": dtype == "bf16"},
        "gradient_clipping": 1.0,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(2):
        loss = engine(torch.arange(11))
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(OUT / case, tag="global_step1")
    torch.distributed.barrier()
    if rank == 0:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        from safetensors.torch import save_file

        stored = engine.module.state_dict()
        state = get_fp32_state_dict_from_zero_checkpoint(OUT / case, tag="global_step1")
        buffers = {name for name, _ in engine.module.named_buffers()}
        state = {k: stored[k].cpu() if k in buffers else v for k, v in state.items()}
        if stage < 3:
            state.update((k, v.cpu()) for k, v in stored.items() if k not in state)
        save_file({k: v.clone().contiguous() for k, v in state.items()}, OUT / f"expected-{case}.safetensors")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    cases = {case: CASES[case] for case in sys.argv[2:] or CASES}
    for number, (case, (_, world, *_)) in enumerate(cases.items()):
        shutil.rmtree(OUT / case, ignore_errors=True)
        mp.spawn(run, (case, world, 29600 + number), nprocs=world)
        for script in ("zero_to_fp32.py", "zero_to_torch.py"):
            (OUT / case / script).unlink(missing_ok=True)
