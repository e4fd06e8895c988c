"""Adapters of mlx-lm for stacks of experts, and what it makes of them and models that have the experts apart.

    python -P adapters_mlx_experts.py whole adapters

mlx-lm 0.32.2, mlx 0.32.4 (CPU). Reads `whole/MODEL/hf`; `adapters` gets ADAPTER/ and `expected-MODEL-ADAPTER.safetensors`: the tensors that
change, under the names of MODEL, which mlx-lm's layers fuse in F64 and which are rounded once to F32.
"""

import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model

WHOLE, OUT = map(Path, sys.argv[1:3])
mx.set_default_device(mx.cpu)
mx.random.seed(13)
# Model, keys, names of an expert's weights.
ADAPTERS = {
    "mlx-experts": ("qwen3_moe", ["mlp.switch_mlp.gate_proj", "mlp.switch_mlp.down_proj", "self_attn.q_proj"], {}),
    "mlx-experts-numbered": ("mixtral", ["block_sparse_moe.switch_mlp.up_proj", "block_sparse_moe.switch_mlp.down_proj"],
                             {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}),
}

for name, (base, keys, numbered) in ADAPTERS.items():
    parameters = {"rank": 2, "scale": 1.75, "dropout": 0.0, "keys": keys}
    model, _ = load_model(WHOLE / base / "hf")
    directory = OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": parameters, "model": base}
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=4))
    linear_to_lora_layers(model, 1, parameters)
    weights = {k: v for k, v in tree_flatten(model.parameters()) if k.rsplit(".", 1)[-1] in ("lora_a", "lora_b")}
    weights = {k: 0.1 * mx.random.normal(v.shape) for k, v in weights.items()}
    mx.save_safetensors(str(directory / "adapters.safetensors"), weights)

    model, _ = load_model(WHOLE / base / "hf")
    load_adapters(model, str(directory))
    model.apply(lambda x: x.astype(mx.float64))
    for module in model.modules():
        if hasattr(module, "fuse"):
            module.fused = module.fuse()
    after = {}
    for module_name, module in model.named_modules():
        if not hasattr(module, "fused"):
            continue
        fused = np.array(module.fused.weight).astype(np.float32)
        if fused.ndim == 2:
            after[f"{module_name}.weight"] = mx.array(fused)
            continue
        parent, projection = module_name.split(".switch_mlp.")
        for i, expert in enumerate(fused):
            after[f"{parent}.experts.{i}.{numbered.get(projection, projection)}.weight"] = mx.array(expert)
    mx.save_safetensors(str(OUT / f"expected-{base}-{name}.safetensors"), after)
    print(name, {k: v.shape for k, v in weights.items()}, sorted(after))
