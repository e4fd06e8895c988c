//! The examples at the end of each command's `--help`. A test runs them.

pub(super) const PROGRAM: &str = "\
Examples:
  amn inspect model.safetensors              what it is, and how large it becomes
  amn remember model-fp8.safetensors         decode it to model-bf16.safetensors
  amn forget model-bf16 --to gguf:q4_k_m     encode a directory for llama.cpp
  amn diff a.safetensors b.gguf              compare two models, value by value
  amn help remember                          what a command can do";

pub(super) const PARSE: &str = "\
Examples:
  amn parse model.safetensors
  amn parse checkpoint.ckpt --root state_dict";

pub(super) const LS: &str = "\
Examples:
  amn ls model.gguf --sort size
  amn ls model-dir '*.layers.0.*'
  amn ls model-dir --tree --depth 2
  amn ls model.gguf --meta --json";

pub(super) const SHOW: &str = "\
Examples:
  amn show model.safetensors '*norm*'
  amn show model-dir 'lm_head.weight[0, :8]'
  amn show model.gguf output.weight --npy output.npy
  amn show model.safetensors --csv";

pub(super) const SCAN: &str = "\
Examples:
  amn scan pytorch_model.bin
  amn scan downloads -v";

pub(super) const INSPECT: &str = "\
Examples:
  amn inspect model-dir
  amn inspect ollama:llama3.2
  amn inspect models/*.gguf
  amn inspect checkpoint.pt --globals";

pub(super) const REMEMBER: &str = "\
Examples:
  amn remember model-fp8.safetensors
  amn remember model-awq -o model-f16 --to f16 --max-shard-size 5GB
  amn remember model.gguf -o model-dir --manifest model-dir/SHA256SUMS
  amn remember model-dir -o out --part 1/4
  amn remember out --finish";

pub(super) const FORGET: &str = "\
Examples:
  amn forget model-bf16 --to gguf:q4_k_m -o model.gguf
  amn forget model-bf16 --to gguf:iq2_xs --imatrix imatrix.gguf
  amn forget model.safetensors --to nf4 --exclude '*lm_head*' -v
  amn forget model-bf16 --to w4a16 --search --imatrix imatrix.gguf --dry-run
  amn forget --list";

pub(super) const CONVERT: &str = "\
Examples:
  amn convert arrays.npz --to safetensors
  amn convert model.safetensors --to gguf --gguf-kv general.architecture=llama
  amn convert model.gguf --to gguf -o split.gguf --max-shard-size 2G
  amn convert checkpoint.pth --to safetensors --skip-unsupported";

pub(super) const MERGE: &str = "\
Examples:
  amn merge model-dir my-lora -o merged
  amn merge model-nf4 my-lora -o merged-f16 --to f16
  amn merge model-dir style=0.7 subject=0.4 -o both
  amn merge model-dir my-lora --to gguf:q8_0 -o merged.gguf";

pub(super) const EDIT: &str = "\
Examples:
  amn edit model.gguf --set general.name=Tiny --in-place
  amn edit model.gguf --chat-template template.jinja -o fixed.gguf
  amn edit model.gguf --set tokenizer.ggml.eos_token_id='<|im_end|>' -i
  amn edit lora.safetensors --set format=pt --unset ss_tag_frequency -i
  amn edit model-dir --set rope_theta=1e6 --set rope_scaling.factor=8 -i";

pub(super) const DIFF: &str = "\
Examples:
  amn diff model-awq model-bf16 --to bf16 --values-only
  amn diff a.gguf b.gguf --tolerance 1e-6 --include '*norm*'
  amn diff model-bf16 model-q4.gguf --values-only --top 10
  amn diff model-nf4 model-w4a16 --against model-bf16 --top 10
  amn diff a.safetensors b.safetensors --json -q";

pub(super) const CHECK: &str = "\
Examples:
  amn check model.safetensors
  amn check --data models -r
  amn check model-dir --manifest model-dir/SHA256SUMS";

pub(super) const REPORT: &str = "\
Examples:
  amn report model.gguf
  amn report model-bf16 model-q4.gguf -o loss.html
  amn report model-dir --no-values -o sizes.html";

pub(super) const COMPLETIONS: &str = "\
Examples:
  amn completions bash
  amn completions zsh";

pub(super) const MAN: &str = "\
Examples:
  amn man
  amn man remember";
