//! What people type who come from other programs works, or the first line of the error names the
//! command that does it.

use std::process::Output;

use crate::amn;
use crate::common::data;

fn demo() -> String {
    let path = data().join("demo/model-fp8.safetensors");
    path.to_string_lossy().into_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `line`, in which `M` is a model, `G` a GGUF file and `OUT` a file that is not there.
fn run(line: &str, out: &str) -> Output {
    let gguf = data()
        .join("demo/model-q4_k.gguf")
        .to_string_lossy()
        .into_owned();
    let args: Vec<String> = line
        .split_whitespace()
        .map(|word| match word {
            "M" => demo(),
            "G" => gguf.clone(),
            "OUT" => out.to_owned(),
            word => word.replace("OUT.", &format!("{out}.")),
        })
        .collect();
    amn(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Commands that do what they say.
#[test]
fn habits_that_work() {
    let directory = tempfile::tempdir().unwrap();
    let lines = [
        "M",
        "compare M M",
        "verify M",
        "validate M",
        "diff M M --atol 1e-3",
        "dequant M -o OUT.safetensors",
        "decode M -f -o OUT.safetensors --dtype float16",
        "remember M -f -o OUT.safetensors --type f32",
        "remember M -f -o OUT.safetensors --outtype bf16",
        "convert M -o OUT.gguf",
        "convert G -f -o OUT.gguf --dtype bf16",
        "encode M -f -o OUT.safetensors --to int8",
        "edit G -f -o OUT.gguf --gguf-kv general.name=Tiny",
        "edit G -f -o OUT.gguf --remove general.name",
    ];
    for line in lines {
        let out = directory.path().join("out").to_string_lossy().into_owned();
        let run = run(line, &out);
        assert_eq!(run.status.code(), Some(0), "{line}: {}", text(&run.stderr));
    }
}

/// Commands that are called otherwise, and what the first line of the error says.
#[test]
fn habits_that_are_called_otherwise() {
    let lines = [
        ("quantize G OUT.gguf Q4_K_M", "--to gguf:q4_k_m -o "),
        ("quantize G q8_0", "--to gguf:q8_0`"),
        // Types that no scheme is called after have no hint.
        ("quantize G OUT.gguf i32", "required arguments were not provided"),
        ("convert M --outtype q8_0", "--to gguf:q8_0"),
        ("convert G --override-kv a=str:x -o OUT.gguf", "--gguf-kv KEY=VALUE"),
        (
            "convert G --chat-template-file x -o OUT.gguf",
            "--gguf-kv \"tokenizer.chat_template=$(cat FILE)\"",
        ),
        ("convert M", "--to FORMAT is missing"),
        ("convert M --outfile x", "`-o OUT`"),
        ("convert M --split-max-size 2G", "--max-shard-size"),
        ("extract M norm", "--include NAME"),
        ("split M", "--max-shard-size"),
        ("join M -o OUT", "amn convert SHARD"),
        ("merge M -o OUT", "amn merge BASE ADAPTER -o OUT"),
        ("merge M --lora A --scale 0.5", "amn merge BASE ADAPTER"),
        ("repair M", "amn check FILE"),
        ("edit G general.name Tiny", "`amn edit "),
        ("edit G --remove-metadata general.name", "--unset KEY"),
        ("edit G --general-name Tiny", "--set general.name=NAME"),
        ("edit G --special-token eos </s>", "--set tokenizer.ggml.eos_token_id="),
        ("set-metadata G general.name Tiny", "`amn edit FILE --set KEY=VALUE"),
        ("diff M M --rtol 1e-3", "--tolerance X"),
        ("remember M --to q8_0", "amn forget FILE --to q8_0"),
        ("remember M --to q4_k_m", "amn forget FILE --to q4_k_m"),
        ("forget M --to gguf", "gguf:q4_k_m, "),
        ("forget M --to mlx", "mlx-4bit, "),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (line, expected) in lines {
        let out = directory.path().join("out").to_string_lossy().into_owned();
        let run = run(line, &out);
        assert_eq!(run.status.code(), Some(2), "{line}");
        let error = text(&run.stderr);
        assert!(error.lines().next().unwrap_or_default().contains(expected), "{line}: {error}");
    }
}

/// All shards of a model, in any order, become one file; some of them do not.
#[test]
fn shards_are_joined() {
    let directory = tempfile::tempdir().unwrap();
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
