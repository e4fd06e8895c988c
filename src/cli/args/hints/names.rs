//! Names of commands and options in other programs, each with what does the same here.

/// Names that mean the same, and what the error says of them.
type NamesRow = (&'static [&'static str], &'static str);

/// How shards become one file.
pub(super) const JOIN: &str = "`amn convert SHARD... -o OUT.gguf` or `-o OUT.safetensors` makes one file of all shards of a model";

const LOOK: &str = "`amn inspect FILE` says what it is, `amn ls FILE --meta` lists tensors and metadata, and `amn show FILE` the values";

const SUMS: &str = "`--sha256` of commands that write prints checksums, and `amn check FILE --manifest SHA256SUMS` compares";

const TYPE: &str = "`amn remember FILE --to bf16`, f16 or f32 decodes, and `--out-dtype` is that type in `amn convert`";

const WIDTH: &str = "the scheme says it: `--to mlx-4bit`, `--to gptq-4bit`, `--to gguf:q4_k_m`; `amn forget --list` names all";

const PARTS: &str = "`--part 1/4` makes one of four parts, `--part-index 0/4` counts from 0, and `amn remember OUT --finish` gives all of them their name";

const RUNS: &str = "it reads and writes models, and runs none: llama.cpp, vLLM, transformers do";

/// Commands of other programs.
pub(super) const VERBS: &[NamesRow] = &[
    (
        &["extract", "export", "save", "prune"],
        "`amn convert FILE --include NAME --to safetensors -o OUT` writes some tensors, `--to npz` arrays, and `amn show FILE NAME --npy OUT.npy` the values of one",
    ),
    (
        &["split", "gguf-split", "shard"],
        "`amn convert FILE --to safetensors --max-shard-size 5GB -o DIRECTORY` writes several files",
    ),
    (&["join", "concat"], JOIN),
    (
        &["repair", "fix"],
        "`amn check FILE` says what is wrong, and `amn convert FILE --to safetensors --skip-unsupported -o OUT` writes what can be read",
    ),
    (
        &["set", "set-metadata", "new-metadata", "gguf-set-metadata", "gguf-new-metadata"],
        "`amn edit FILE --set KEY=VALUE --in-place` changes metadata, and -o OUT writes a copy",
    ),
    (
        &[
            "dump",
            "gguf-dump",
            "header",
            "metadata",
            "tensors",
            "meta",
            "keys",
            "print",
            "cat",
            "stats",
            "histogram",
        ],
        LOOK,
    ),
    (&["hash", "sha256", "sha256sum", "checksum", "manifest"], SUMS),
    (
        &["audit", "safe", "picklescan", "modelscan", "lint", "disassemble"],
        "`amn scan FILE` says what a checkpoint would do to Python, and `amn inspect FILE --globals` what it names",
    ),
    (
        &["convert_hf_to_gguf", "convert-hf-to-gguf", "convert_hf_to_gguf.py", "to-gguf"],
        "`amn convert DIR --to gguf` writes a model that llama.cpp runs, and `--to gguf:q8_0` quantizes it at once",
    ),
    (
        &["upcast", "restore", "unquantize", "decompress", "recover"],
        "`amn remember FILE` decodes to BF16, and `--to f32` or `--to f16` to another type",
    ),
    (
        &["compress", "quantise", "imatrix"],
        "`amn forget FILE --to SCHEME` quantizes, with `--imatrix FILE` by importance",
    ),
    (
        &["merge_and_unload", "merge-lora", "lora"],
        "`amn merge BASE ADAPTER -o OUT` merges adapters",
    ),
    (
        &["pull", "download", "fetch"],
        "hf-fetch-model downloads models, and `ollama pull`; `amn inspect ORG/MODEL` and `ollama:MODEL` find what they have",
    ),
    (&["run", "serve", "generate", "chat", "bench", "perplexity"], RUNS),
    (
        &["create", "modelfile"],
        "`amn convert DIR --to gguf -o model.gguf` writes what `FROM model.gguf` of a Modelfile loads",
    ),
    (
        &["status", "resume"],
        "`--resume` continues an interrupted run, and `--dry-run` says what is left to do",
    ),
    (&["finish", "part"], PARTS),
    (&["version"], "`amn --version` prints it"),
];

/// Options of other programs.
pub(super) const OPTIONS: &[NamesRow] = &[
    (
        &["--override-kv"],
        "`--gguf-kv KEY=VALUE` sets metadata, and `--gguf-kv KEY:TYPE=VALUE` with a type",
    ),
    (
        &["--chat-template-file"],
        "`--gguf-kv \"tokenizer.chat_template=$(cat FILE)\"` sets the template",
    ),
    (&["--remove-metadata"], "`amn edit FILE --unset KEY --in-place` removes a key"),
    (
        &["--general-name", "--general-description"],
        "`amn edit FILE --set general.name=NAME --in-place` sets a key",
    ),
    (
        &["--special-token", "--special-token-by-id"],
        "`amn edit FILE --set tokenizer.ggml.eos_token_id='<|im_end|>' --in-place` sets a special token, by its text or its number",
    ),
    (
        &["--chat-template-config"],
        "`amn edit FILE --chat-template tokenizer_config.json --in-place` sets its template",
    ),
    (&["--lora"], "`amn merge BASE ADAPTER -o OUT` merges adapters"),
    (&["--scale"], "`amn merge BASE ADAPTER=0.5 -o OUT` multiplies what an adapter adds"),
    (
        &["--outtype"],
        "`--to gguf:f16`, `--to gguf:bf16` or `--to gguf:q8_0` says container and type, and `--out-dtype` the type of what is decoded",
    ),
    (
        &["--outfile", "--output-dir", "--output_dir", "--out", "--mlx-path", "--save"],
        "`-o OUT` names the output",
    ),
    (
        &["--hf-path", "--model", "--input", "-i", "-m"],
        "the model is the argument: `amn convert DIR --to gguf`",
    ),
    (&["--bf16", "--fp16", "--f16", "--fp32", "--f32", "--torch-dtype", "--torch_dtype"], TYPE),
    (&["--q-bits", "--wbits", "-b", "--ftype"], WIDTH),
    (
        &["--method", "--quant-method", "--quant", "--quantization", "--qtype"],
        "`--to SCHEME` says it, e.g. `--to awq` or `--to gguf:q4_k_m`; `amn forget --list` names all",
    ),
    (
        &["--q-group-size", "--q_group_size", "--groupsize", "--block-size"],
        "`--group-size N` is the number of values that share a scale",
    ),
    (
        &["--ignore", "--skip", "--modules-to-not-convert"],
        "`--exclude PATTERN` leaves tensors as they are",
    ),
    (&["--filter", "--only"], "`--include PATTERN` takes the tensors with such names"),
    (&["--vocab-only", "--mtp", "--fp8-as-q8"], "`amn convert DIR --to gguf` takes it"),
    (&["--format"], "`--json` prints JSON, and `--to` says the container of an output"),
    (
        &["--shard", "--split"],
        "`--part 1/4` makes a part of an output, and `--max-shard-size 5GB` several files",
    ),
    (
        &["--num-workers", "--num_workers", "--workers", "--nthreads", "--jobs"],
        "`--threads N` or `-j N`",
    ),
    (&["--rank", "--world-size", "--node", "--nodes", "--num-parts", "--array"], PARTS),
    (&["--sha256", "--checksum", "--verify", "--hash", "--md5"], SUMS),
    (&["--overwrite"], "`--force` replaces an output that exists"),
    (&["--rtol"], "`--tolerance X` is the largest absolute difference; `--json` has relative ones"),
    (&["--split-max-size"], "`--max-shard-size 5GB` splits the output"),
    (&["--split-max-tensors"], "`--max-shard-size 5GB` splits the output, by size"),
    (&["--merge"], JOIN),
    (&["--leave-output-tensor"], "`--exclude output.weight` leaves it as it is"),
    (
        &["--strict", "--fail", "--fail-on", "--exit-code"],
        "the exit code says it already: 1 if `amn check` or `amn scan` finds something or `amn diff` a difference, 8 if it is dangerous",
    ),
    (&["--junit", "--xml", "--github"], "`--sarif` and `--json` are what other programs read"),
    (&["--numpy", "--array-out"], "`amn show FILE TENSOR --npy OUT.npy` writes an array"),
    (
        &["--histogram", "--hist", "--plot"],
        "`amn show FILE TENSOR` draws a histogram, `--bins N` divides it, and `amn report FILE` has pictures",
    ),
    (
        &["-o", "--output"],
        "the command prints; `--json > FILE` or `--csv > FILE` keeps it, `amn show FILE TENSOR --npy OUT.npy` writes an array, and `--html FILE` a page",
    ),
];

/// The sentence for `name`.
pub(super) fn find(table: &[NamesRow], name: &str) -> Option<String> {
    let row = table.iter().find(|(names, _)| names.contains(&name));
    row.map(|(_, what)| format!("amn has no `{name}`: {what}"))
}
