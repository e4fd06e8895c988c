"""What diffusers makes of the names of a LoRA of kohya's scripts for Flux.

    python -P adapters_image_names.py adapters_image

diffusers 0.42.1, torch 2.15.0. Writes `converted-flux-kohya.safetensors`: `flux-kohya.safetensors` as diffusers' converter, for the small
model's width, gives it to PEFT.
"""

import inspect
import sys
from pathlib import Path

from diffusers.loaders import lora_conversion_utils
from safetensors.torch import load_file, save_file

OUT = Path(sys.argv[1])
source = inspect.getsource(lora_conversion_utils._convert_kohya_flux_lora_to_diffusers)
scope = dict(vars(lora_conversion_utils))
# Flux's width is written into it.
exec(source.replace("3072", "16").replace("12288", "64"), scope)
converted = scope["_convert_kohya_flux_lora_to_diffusers"](load_file(OUT / "flux-kohya.safetensors"))
save_file({k: v.clone().contiguous() for k, v in converted.items()}, OUT / "converted-flux-kohya.safetensors")
print(len(converted), *sorted(converted)[:4])
