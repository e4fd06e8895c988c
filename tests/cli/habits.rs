//! What people type who come from other programs, by the guide that they read: it works, or the first
//! line of the error names what does it.

use std::process::{Command, Stdio};

use crate::amn;
use crate::common::{data, tempdir};

/// A guide, or none; a line; and what the first line of the error has, nothing if it works. `F` and `B` are files,
/// `T` and `X` directories, `G` and `Q` GGUF, `N` arrays, `P` a checkpoint, `OUT` is not there.
const HABITS: &[(&str, &str, &str)] = &[
    ("researcher", "inspect F", ""),
    ("researcher", "info F", ""),
    ("researcher", "F", ""),
    ("researcher", "ls T *q_proj*", ""),
    ("researcher", "show F layers.0.attention.wq.weight", ""),
    ("researcher", "print F layers.0.attention.wq.weight", "amn inspect FILE"),
    ("researcher", "dequantize F -o OUT.safetensors", ""),
    ("researcher", "dequantize F --dtype float32 -o OUT.safetensors", ""),
    ("researcher", "convert F --to float32 -o OUT.safetensors", "amn remember FILE --to float32"),
    (
        "researcher",
        "extract F layers.0.attention.wq.weight -o OUT.npy",
        "amn convert FILE --include NAME --to safetensors -o OUT",
    ),
    ("researcher", "dump F", "amn inspect FILE"),
    ("researcher", "stats F", "amn inspect FILE"),
    ("researcher", "histogram F", "amn inspect FILE"),
    ("researcher", "show F layers.0.attention.wq.weight -o OUT.npy", "--npy OUT.npy"),
    ("researcher", "show F layers.0.attention.wq.weight --histogram", "--bins N"),
    ("researcher", "compare T T", ""),
    (
        "researcher",
        "export F --format npz",
        "amn convert FILE --include NAME --to safetensors -o OUT",
    ),
    ("fine-tuning", "dequantize F --dry-run", ""),
    ("fine-tuning", "remember T --to bf16 -o OUT", ""),
    ("fine-tuning", "upcast F -o OUT.safetensors", "amn remember FILE"),
    ("fine-tuning", "remember F --bf16 -o OUT.safetensors", "amn remember FILE --to bf16"),
    ("fine-tuning", "convert F --to bf16 -o OUT.safetensors", "amn remember FILE --to bf16"),
    ("fine-tuning", "convert F --dtype bfloat16 -o OUT.safetensors", ""),
    ("fine-tuning", "remember Q --to safetensors -o OUT.safetensors", "amn remember FILE"),
    ("fine-tuning", "remember F -o OUT --torch-dtype bfloat16", "amn remember FILE --to bf16"),
    ("fine-tuning", "remember F --output-dir out", "-o OUT"),
    ("fine-tuning", "merge_and_unload T adapter", "amn merge BASE ADAPTER -o OUT"),
    ("fine-tuning", "restore F", "amn remember FILE"),
    ("llama-cpp", "convert T --to gguf -o OUT.gguf", ""),
    ("llama-cpp", "convert T --outtype f16 --outfile m.gguf", "--to gguf:f16"),
    ("llama-cpp", "convert_hf_to_gguf T", "amn convert DIR --to gguf"),
    ("llama-cpp", "quantize G o.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
    ("llama-cpp", "forget T --to Q4_K_M -o OUT.gguf", ""),
    ("llama-cpp", "forget B --to gguf:Q4_K_M -o OUT.gguf", ""),
    ("llama-cpp", "quantize --imatrix x.dat G o.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
    ("llama-cpp", "quantize --pure G o3.gguf q8_0", "--to gguf:q8_0 -o "),
    ("llama-cpp", "quantize G o4.gguf 15", "amn quantize IN.gguf --to gguf:q4_k_m -o OUT.gguf"),
    ("llama-cpp", "quantize --output-tensor-type q8_0 G o5.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
    ("llama-cpp", "quantize --allow-requantize G o6.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
    (
        "llama-cpp",
        "gguf-split --split G part",
        "amn convert FILE --to safetensors --max-shard-size 5GB -o DIRECTORY",
    ),
    (
        "llama-cpp",
        "split G -o OUT",
        "amn convert FILE --to safetensors --max-shard-size 5GB -o DIRECTORY",
    ),
    ("llama-cpp", "gguf-dump G", "amn inspect FILE"),
    ("llama-cpp", "convert T --to gguf --vocab-only -o OUT.gguf", ""),
    ("llama-cpp", "forget T --to gguf:q8_0 --vocab-only -o OUT.gguf", "amn convert DIR --to gguf"),
    ("llama-cpp", "convert G --to hf -o OUT", "amn remember FILE -o DIRECTORY"),
    ("llama-cpp", "remember T --to gguf", "amn convert FILE --to gguf"),
    ("llama-cpp", "convert G --override-kv general.name=str:x -o OUT.gguf", "--gguf-kv KEY=VALUE"),
    ("ollama", "inspect ollama:NAME", ""),
    ("ollama", "ollama:NAME", ""),
    ("ollama", "ls ollama:NAME", ""),
    ("ollama", "list ollama:NAME", ""),
    ("ollama", "show ollama:NAME", ""),
    ("ollama", "convert ollama:NAME -o OUT.safetensors", ""),
    ("ollama", "remember ollama:NAME -o OUT.safetensors", ""),
    ("ollama", "run ollama:NAME", "runs none"),
    ("ollama", "pull llama3", "amn inspect ORG/MODEL"),
    ("ollama", "list", "amn ls ollama:MODEL"),
    (
        "ollama",
        "export ollama:tinyllama",
        "amn convert FILE --include NAME --to safetensors -o OUT",
    ),
    ("ollama", "create foo -f Modelfile", "amn convert DIR --to gguf -o model.gguf"),
    ("ollama", "modelfile ollama:tinyllama", "amn convert DIR --to gguf -o model.gguf"),
    ("comfyui", "convert F --to fp16 -o OUT.safetensors", "amn remember FILE --to fp16"),
    ("comfyui", "convert F --fp16 -o OUT.safetensors", "amn remember FILE --to bf16"),
    ("comfyui", "forget B --to fp8 -o OUT.safetensors", ""),
    ("comfyui", "forget B --to fp8_e4m3fn -o OUT.safetensors", ""),
    ("comfyui", "forget B --to fp8_scaled -o OUT.safetensors", ""),
    ("comfyui", "convert B --to q8_0 -o OUT.gguf", ""),
    ("comfyui", "forget B --to Q4_K_S -o OUT.gguf", ""),
    ("comfyui", "forget B --to nvfp4 -o OUT.safetensors", ""),
    ("comfyui", "forget B --to comfy-nvfp4 -o OUT.safetensors", ""),
    ("comfyui", "prune B -o OUT", "amn convert FILE --include NAME --to safetensors -o OUT"),
    ("comfyui", "remember F --to fp32 -o OUT.safetensors", ""),
    ("vllm", "forget T --to fp8 -o OUT", ""),
    ("vllm", "quantize T --scheme FP8_DYNAMIC -o OUT", ""),
    ("vllm", "forget T --to FP8_BLOCK -o OUT", ""),
    ("vllm", "forget T --to W4A16 -o OUT", ""),
    ("vllm", "forget T --to W8A8 -o OUT", ""),
    ("vllm", "forget T --to int4 -o OUT", ""),
    ("vllm", "forget T --to awq -o OUT", ""),
    ("vllm", "forget T --to compressed-tensors -o OUT", "which one? "),
    ("vllm", "forget T --to int4-awq -o OUT", "near are int4, awq, "),
    ("vllm", "forget T --method awq -o OUT", "--to SCHEME"),
    ("vllm", "forget T --to NVFP4 -o OUT", ""),
    ("vllm", "forget T --to gptq --bits 4 --group-size 64 -o OUT", "--to mlx-4bit"),
    ("vllm", "forget T --to fp8 --ignore lm_head -o OUT", "--exclude PATTERN"),
    ("vllm", "serve T", "runs none"),
    ("mlx", "convert T --to mlx -o OUT", "which one? "),
    ("mlx", "forget T --to mlx -o OUT", "which one? "),
    ("mlx", "forget T --to mlx-4bit -o OUT", ""),
    ("mlx", "convert --hf-path T -q --mlx-path M5", "amn convert DIR --to gguf"),
    ("mlx", "forget T --to mlx --bits 4 -o OUT", "--to mlx-4bit"),
    ("mlx", "forget T --to mlx --q-bits 4 --q-group-size 64 -o OUT", "--to mlx-4bit"),
    ("mlx", "remember X -o OUT", ""),
    ("mlx", "dequantize X -o OUT", ""),
    ("mlx", "forget T --to mlx-8bit -o OUT", ""),
    ("mlx", "forget T --to 4bit -o OUT", "which one? "),
    ("mlx", "forget T --to mlx-q4 -o OUT", "which one? --to mlx-4bit, "),
    ("numpy", "convert F --to npz -o OUT.npz", ""),
    ("numpy", "convert F -o OUT.npz", ""),
    ("numpy", "convert F --to npy --out-dtype f32 -o OUT", ""),
    ("numpy", "convert F --to npy -o OUT.npy", "amn show FILE TENSOR --npy"),
    ("numpy", "convert N --to safetensors -o OUT.safetensors", ""),
    ("numpy", "convert N -o OUT.safetensors", ""),
    ("numpy", "show F layers.0.attention.wq.weight --npy OUT.npy", ""),
    (
        "numpy",
        "save F layers.0.attention.wq.weight w.npy",
        "amn convert FILE --include NAME --to safetensors -o OUT",
    ),
    ("numpy", "ls N", ""),
    ("numpy", "convert P --to npz -o OUT.npz", ""),
    ("numpy", "convert P -o OUT.safetensors", ""),
    ("numpy", "convert F --to csv", "amn show FILE TENSOR --csv"),
    ("numpy", "show F layers.0.attention.wq.weight --numpy OUT.npy", "--npy OUT.npy"),
    ("numpy", "convert N --to pt -o OUT.pt", ""),
    ("numpy", "convert N --to pth -o OUT.bin", ""),
    ("numpy", "convert N --to flax -o OUT.msgpack", ""),
    ("numpy", "convert N -o OUT.bpk", ""),
    ("rust", "parse F", ""),
    ("rust", "ls F --json", ""),
    ("rust", "inspect F --json", ""),
    ("rust", "header F", "amn inspect FILE"),
    ("rust", "--version", ""),
    ("rust", "version", "amn --version"),
    ("rust", "help remember", ""),
    ("rust", "metadata F", "amn inspect FILE"),
    ("rust", "tensors F", "amn inspect FILE"),
    ("rust", "list F", ""),
    ("untrusted-files", "scan P", ""),
    ("untrusted-files", "check P", ""),
    ("untrusted-files", "validate P", ""),
    ("untrusted-files", "verify P", ""),
    ("untrusted-files", "inspect P --globals", ""),
    ("untrusted-files", "convert P -o OUT.safetensors", ""),
    ("untrusted-files", "safe P", "amn scan FILE"),
    ("untrusted-files", "audit P", "amn scan FILE"),
    ("untrusted-files", "lint P", "amn scan FILE"),
    ("untrusted-files", "picklescan -p P", "amn scan FILE"),
    ("untrusted-files", "disassemble P", "amn scan FILE"),
    ("untrusted-files", "scan P --strict", "the exit code says it"),
    ("ci", "check T --strict", "amn check"),
    ("ci", "diff T T --exit-code", "the exit code says it"),
    ("ci", "check T --junit", "--sarif"),
    ("ci", "check T --json", ""),
    ("ci", "diff T T", ""),
    ("ci", "scan T --format json", "--json"),
    ("ci", "check T -o OUT.json", "--json > FILE"),
    ("ci", "check T --html OUT.html", ""),
    ("ci", "verify T --sha256", "amn check FILE --manifest SHA256SUMS"),
    ("ci", "hash T", "--sha256"),
    ("ci", "sha256 T", "--sha256"),
    ("ci", "diff T T --atol 1e-3", ""),
    ("ci", "diff T T --rtol 1e-3", "--tolerance X"),
    ("ci", "checksum T", "--sha256"),
    ("cluster", "remember T -o OUT --part 1/4", ""),
    ("cluster", "remember T -o OUT --shard 1/4", "--part 1/4"),
    ("cluster", "remember T -o OUT --rank 0 --world-size 4", "--part-index 0/4"),
    ("cluster", "remember T -o OUT --finish", "amn remember "),
    ("cluster", "finish OUT", "amn remember OUT --finish"),
    ("cluster", "remember T -o OUT --resume", ""),
    ("cluster", "remember T -o OUT --threads 4", ""),
    ("cluster", "remember T -o OUT --num-workers 4", "--threads N"),
    ("cluster", "remember T -o OUT -j 4", ""),
    ("cluster", "join C", "amn convert SHARD... -o OUT.gguf"),
    ("cluster", "remember T -o OUT --dry-run", ""),
    ("cluster", "status C", "--resume"),
    ("cluster", "remember T --output OUT", ""),
    ("cluster", "remember T -o OUT --max-shard-size 5GB", ""),
    ("cluster", "merge C", "amn merge BASE ADAPTER -o OUT"),
    ("", "F", ""),
    ("", "compare F F", ""),
    ("", "verify F", ""),
    ("", "validate F", ""),
    ("", "diff F F --atol 1e-3", ""),
    ("", "dequant F -o OUT.safetensors", ""),
    ("", "decode F -f -o OUT.safetensors --dtype float16", ""),
    ("", "remember F -f -o OUT.safetensors --type f32", ""),
    ("", "remember F -f -o OUT.safetensors --outtype bf16", ""),
    ("", "convert F -o OUT.gguf", ""),
    ("", "convert Q -f -o OUT.gguf --dtype bf16", ""),
    ("", "encode F -f -o OUT.safetensors --to int8", ""),
    ("", "edit Q -f -o OUT.gguf --gguf-kv general.name=Tiny", ""),
    ("", "edit Q -f -o OUT.gguf --remove general.name", ""),
    ("", "quantize Q OUT.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
    ("", "quantize Q q8_0", "--to gguf:q8_0`"),
    // Types that no scheme is called after have no hint.
    ("", "quantize Q OUT.gguf i32", "required arguments were not provided"),
    ("", "convert F --outtype q8_0", "--to gguf:q8_0"),
    ("", "convert Q --override-kv a=str:x -o OUT.gguf", "--gguf-kv KEY=VALUE"),
    (
        "",
        "convert Q --chat-template-file x -o OUT.gguf",
        "--gguf-kv \"tokenizer.chat_template=$(cat FILE)\"",
    ),
    ("", "convert F", "--to FORMAT is missing"),
    ("", "convert F --outfile x", "`-o OUT`"),
    ("", "convert F --split-max-size 2G", "--max-shard-size"),
    ("", "extract F norm", "--include NAME"),
    ("", "split F", "--max-shard-size"),
    ("", "join F -o OUT", "amn convert SHARD"),
    ("", "merge F -o OUT", "amn merge BASE ADAPTER -o OUT"),
    ("", "merge F --lora A --scale 0.5", "amn merge BASE ADAPTER"),
    ("", "repair F", "amn check FILE"),
    ("", "edit Q general.name Tiny", "`amn edit "),
    ("", "edit Q --remove-metadata general.name", "--unset KEY"),
    ("", "edit Q --general-name Tiny", "--set general.name=NAME"),
    ("", "edit Q --special-token eos </s>", "--set tokenizer.ggml.eos_token_id="),
    ("", "set-metadata Q general.name Tiny", "`amn edit FILE --set KEY=VALUE"),
    ("", "diff F F --rtol 1e-3", "--tolerance X"),
    ("", "remember F --to q8_0", "amn forget FILE --to q8_0"),
    ("", "remember F --to q4_k_m", "amn forget FILE --to q4_k_m"),
    ("", "forget F --to gguf", "gguf:q4_k_m, "),
    ("", "forget F --to mlx", "mlx-4bit, "),
];

#[test]
fn of_all_guides() {
    let guides = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide")).unwrap();
    for guide in guides {
        let name = guide.unwrap().file_name().into_string().unwrap();
        let name = name.strip_suffix(".md").unwrap();
        let lines = HABITS.iter().filter(|(guide, ..)| *guide == name).count();
        assert!(lines >= 10 || ["README", "troubleshooting"].contains(&name), "{name}: {lines}");
    }
    let place = tempdir().unwrap();
    let mut failed = Vec::new();
    for (n, (_, line, says)) in HABITS.iter().enumerate() {
        let words = line.split(' ').map(|word| match word {
            "F" => at("demo/model-fp8.safetensors"),
            "B" => at("demo/expected-bf16.safetensors"),
            "Q" => at("demo/model-q4_k.gguf"),
            "G" => at("adapters/base-q8_0.gguf"),
            "T" => at("guide/TinyLlama"),
            "X" => at("mlx/tiny_qwen3_moe/model"),
            "N" => at("demo/arrays.npz"),
            "P" => at("demo/checkpoint.pth"),
            word => word
                .replace("OUT", &format!("out{n}"))
                .replace("ollama:NAME", "ollama:layers"),
        });
        let end = Command::new(env!("CARGO_BIN_EXE_amn"))
            .current_dir(place.path())
            .env("OLLAMA_MODELS", at("ollama/models"))
            .stdin(Stdio::null())
            .args(words)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&end.stderr);
        let first = error.lines().next().unwrap_or_default();
        let is_met = match says.is_empty() {
            true => end.status.success(),
            false => end.status.code() == Some(2) && first.contains(says),
        };
        if !is_met {
            failed.push(format!("{line}: {first}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A path alone is a model, also if nothing is there.
#[test]
fn a_model_that_is_missing() {
    let end = amn(&["not/there.gguf"]);
    let error = text(&end.stderr);
    assert_eq!(end.status.code(), Some(7), "{error}");
    assert!(error.contains("not/there.gguf") && !error.contains("subcommand"), "{error}");
}

fn at(name: &str) -> String {
    data().join(name).to_str().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All shards of a model, in any order, become one file; some of them do not.
#[test]
fn shards_are_joined() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let source = data()
        .join("gptq_more/tiny_llama/model")
        .to_string_lossy()
        .into_owned();
    let gguf = data()
        .join("adapters/base-q8_0.gguf")
        .to_string_lossy()
        .into_owned();
    let split =
        amn(&["convert", &gguf, "--to", "gguf", "--max-shard-size", "100", "-o", &path("s.gguf")]);
    assert_eq!(split.status.code(), Some(0), "{}", text(&split.stderr));
    let named = |of: &str, from: &std::path::Path| -> Vec<String> {
        let mut all: Vec<String> = std::fs::read_dir(from)
            .unwrap()
            .map(|entry| entry.unwrap().path().to_string_lossy().into_owned())
            .filter(|name| name.contains("-of-") && name.ends_with(of))
            .collect();
        all.sort();
        all.reverse();
        all
    };
    let gguf_shards = named("gguf", directory.path());
    assert!(gguf_shards.len() > 1);
    let shards = named("safetensors", std::path::Path::new(&source));
    for (shards, out, whole) in
        [(shards, "all.safetensors", source.as_str()), (gguf_shards, "all.gguf", gguf.as_str())]
    {
        let out = path(out);
        let mut args = vec!["convert"];
        args.extend(shards.iter().map(String::as_str));
        args.extend(["-o", &out]);
        let run = amn(&args);
        assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
        let diff = amn(&["diff", &out, whole, "--values-only", "--to", "bf16"]);
        assert_eq!(diff.status.code(), Some(0), "{}", text(&diff.stdout));
        args.remove(1);
        args.push("-f");
        assert_eq!(amn(&args).status.code(), Some(2));
    }
}

/// What is read and not written is refused by name, as an output and as a target.
#[test]
fn containers_that_are_not_written() {
    let directory = tempdir().unwrap();
    let input = at("demo/expected-bf16.safetensors");
    for ending in
        "bin ckpt distcp h5 hdf5 keras litertlm mlmodel onnx pdparams pkl ptd pte tflite uqff xml"
            .split(' ')
    {
        let out = directory.path().join(format!("model.{ending}"));
        let out = out.to_str().unwrap();
        let runs = [
            vec!["remember", &input, "-o", out],
            vec!["convert", &input, "-o", out],
            vec!["forget", &input, "--to", "nf4", "-o", out],
            vec!["convert", &input, "--to", ending, "-o", "out"],
        ];
        for run in runs {
            let end = amn(&run);
            let error = text(&end.stderr);
            assert_eq!(end.status.code(), Some(2), "{run:?}: {error}");
            assert!(error.contains("read and not written"), "{run:?}: {error}");
        }
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
