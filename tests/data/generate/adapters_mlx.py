"""Adapters of mlx-lm, and what it makes of them and their model.

    python adapters_mlx.py BASE OUT

mlx-lm 0.32.2, mlx 0.32.4 (CPU). BASE is tests/data/adapters/base, OUT gets ADAPTER/ and `expected-base-ADAPTER.safetensors`: the tensors
that change, which mlx-lm's layers fuse in F64 and which are rounded once to F32.
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

BASE, OUT = map(Path, sys.argv[1:3])
mx.set_default_device(mx.cpu)
mx.random.seed(11)
ADAPTERS = {
    "mlx": ("lora", {"rank": 3, "scale": 2.5, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "model.embed_tokens"]}),
    "mlx-dora": ("dora", {"rank": 2, "scale": 1.5, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.up_proj"]}),
    "mlx-full": ("full", None),
}

for name, (kind, parameters) in ADAPTERS.items():
    model, _ = load_model(BASE)
    before = dict(tree_flatten(model.parameters()))
    directory = OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = {"fine_tune_type": kind, "num_layers": 1, "lora_parameters": parameters, "model": "base"}
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=4))
    if kind == "full":
        weights = {k: v + 0.01 * mx.random.normal(v.shape) for k, v in before.items() if "layernorm" in k}
    else:
        linear_to_lora_layers(model, 1, parameters, use_dora=kind == "dora")
        weights = {k: v for k, v in tree_flatten(model.parameters()) if k.rsplit(".", 1)[-1] in ("lora_a", "lora_b", "m")}
        weights = {k: v * (1 + 0.1 * mx.random.normal(v.shape)) if k.endswith(".m") else 0.1 * mx.random.normal(v.shape) for k, v in weights.items()}
    mx.save_safetensors(str(directory / "adapters.safetensors"), weights)

    model, _ = load_model(BASE)
    load_adapters(model, str(directory))
    if kind != "full":
        model.apply(lambda x: x.astype(mx.float64))
        for module in model.modules():
            if hasattr(module, "fuse"):
                module.fused = module.fuse()
        after = {f"{n}.weight": m.fused.weight for n, m in model.named_modules() if hasattr(m, "fused")}
    else:
        after = {k: dict(tree_flatten(model.parameters()))[k] for k in weights}
    after = {k: mx.array(np.array(v).astype(np.float32)) for k, v in after.items()}
    mx.save_safetensors(str(OUT / f"expected-base-{name}.safetensors"), after)
    print(name, sorted(after))
