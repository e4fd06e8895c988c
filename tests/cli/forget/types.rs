//! Types of single tensors of a GGUF file, and encoding what is encoded already.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::amn;
use crate::common::{data, f32s, file, raw};

/// A model with the tensors of a llama, of `cols` columns.
fn model(path: &Path, cols: usize) {
    let names = [
        "token_embd.weight",
        "output.weight",
        "blk.0.attn_q.weight",
        "blk.0.ffn_down.weight",
        "blk.0.ffn_up.weight",
    ];
    let values: Vec<f32> = (0..4 * cols)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0)
        .collect();
    let tensors = names.map(|name| raw(name, "F32", &[4, cols], f32s(&values)));
    std::fs::write(path, file(&tensors, &[])).unwrap();
}

/// Types and bytes of the tensors by name.
fn encoded(path: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let model = anamnesis::parse(path).unwrap();
    let entry = |t: anamnesis::Tensor<'_>| {
        let bytes = t.bytes().unwrap().into_owned();
        (t.name().to_owned(), (t.dtype().to_string(), bytes))
    };
    model.tensors().map(entry).collect()
}

fn forget(input: &Path, output: &Path, options: &[&str]) -> (Option<i32>, String) {
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let mut all = vec!["forget", input, "-o", output];
    all.extend(options);
    let run = amn(&all);
    (run.status.code(), String::from_utf8(run.stderr).unwrap())
}

/// Each tensor has the bytes that the uniform type gives it.
#[test]
fn types_of_single_tensors() {
    let dir = crate::common::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let input = at("in.safetensors");
    model(&input, 256);
    let options = [
        "--to",
        "q4_k_m",
        "--tensor-type",
        "*.ffn_*=q8_0",
        "--tensor-type",
        "*.ffn_up.*=q6_k",
        "--tensor-type",
        "blk.[0-9].attn_q.weight=Q5_0",
        "--token-embedding-type",
        "f16",
        "--output-tensor-type",
        "iq4_nl",
    ];
    let run = forget(&input, &at("out.gguf"), &options);
    assert_eq!(run.0, Some(0), "{}", run.1);
    let found = encoded(&at("out.gguf"));
    // Of two patterns the first counts, as for llama-quantize.
    for (name, of) in [
        ("blk.0.ffn_down.weight", "q8_0"),
        ("blk.0.ffn_up.weight", "q8_0"),
        ("blk.0.attn_q.weight", "q5_0"),
        ("token_embd.weight", "f16"),
        ("output.weight", "iq4_nl"),
    ] {
        let uniform = at(&format!("{of}.gguf"));
        if !uniform.exists() {
            let scheme = format!("gguf:{of}");
            assert_eq!(forget(&input, &uniform, &["--to", &scheme, "--pure"]).0, Some(0));
        }
        assert_eq!(found[name], encoded(&uniform)[name], "{name}");
    }
}

#[test]
fn types_that_cannot_be() {
    let dir = crate::common::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (input, short) = (at("in.safetensors"), at("short.safetensors"));
    model(&input, 256);
    model(&short, 96);
    // Rows that are not whole blocks get the type that llama-quantize gives them.
    let run =
        forget(&short, &at("short.gguf"), &["--to", "q8_0", "--tensor-type", "*attn_q*=q4_k"]);
    assert_eq!(run.0, Some(0), "{}", run.1);
    assert_eq!(encoded(&at("short.gguf"))["blk.0.attn_q.weight"].0, "Q5_0");
    let rows: [(&Path, &[&str], i32, &str); 5] = [
        (&short, &["--to", "q8_0", "--token-embedding-type", "q4_k"], 2, "96 columns"),
        (&input, &["--to", "q8_0", "--tensor-type", "nothing=q4_k"], 2, "`nothing`"),
        (&input, &["--to", "q8_0", "--tensor-type", "a=q9"], 2, "Q4_K"),
        (&input, &["--to", "q8_0", "--tensor-type", "q4_k"], 2, "GLOB=TYPE"),
        (&input, &["--to", "nf4", "--tensor-type", "*=q4_k"], 2, "GGUF"),
    ];
    for (input, options, code, part) in rows {
        let run = forget(input, &at("no"), options);
        assert_eq!(run.0, Some(code), "{options:?} {}", run.1);
        assert!(run.1.contains(part), "{}", run.1);
    }
}

#[test]
fn encoding_twice_is_asked_for() {
    let dir = crate::common::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let input = data().join("demo/model-q4_k.gguf");
    for command in ["forget", "convert"] {
        let output = at("no.gguf");
        let run = amn(&[
            command,
            input.to_str().unwrap(),
            "--to",
            "q8_0",
            "-o",
            output.to_str().unwrap(),
        ]);
        let text = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(6), "{text}");
        assert!(text.contains("1 tensor") && text.contains("--allow-requantize"), "{text}");
        assert!(!output.exists());
    }
    assert_eq!(forget(&input, &at("a.gguf"), &["--to", "q8_0", "--allow-requantize"]).0, Some(0));
    // To floats nothing is lost twice.
    assert_eq!(forget(&input, &at("b.gguf"), &["--to", "gguf:f16"]).0, Some(0));
    // Of other quantized models there is a note.
    let fp8 = data().join("demo/model-fp8.safetensors");
    let run = amn(&[
        "forget",
        fp8.to_str().unwrap(),
        "--to",
        "q8_0",
        "-o",
        at("c.gguf").to_str().unwrap(),
    ]);
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(text.contains("1 tensor quantized already"), "{text}");
}

/// What a plan says is what was chosen, in every container, and a plan is one of its own kind of model.
#[test]
fn plans_are_saved_and_taken() {
    let root = crate::common::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let input = at("in.safetensors");
    let names = ["q_proj", "k_proj", "up_proj", "down_proj"];
    let weights = names.iter().enumerate().map(|(i, name)| {
        let values = (0..64 * 256).map(|n: usize| ((n * (37 + i) % 101) as f32 - 50.0) / 64.0);
        raw(
            &format!("model.layers.0.{name}.weight"),
            "F32",
            &[64, 256],
            f32s(&values.collect::<Vec<_>>()),
        )
    });
    std::fs::write(&input, file(&weights.collect::<Vec<_>>(), &[])).unwrap();
    for (scheme, bits, ending) in
        [("q4_k", "5", "gguf"), ("mlx-4bit", "5.6", "safetensors"), ("w4a16", "6.2", "safetensors")]
    {
        let [plan, chosen, taken] = ["txt", "a", "b"].map(|name| at(&format!("{scheme}-{name}")));
        let (chosen, taken) = (chosen.with_extension(ending), taken.with_extension(ending));
        let path = plan.to_str().unwrap();
        let both = ["--to", scheme, "--plan", path, "--bits", bits];
        let dry = [&both[..], &["--dry-run"]].concat();
        assert_eq!(forget(&input, &chosen, &dry).0, Some(0), "{scheme}");
        assert!(!chosen.exists());
        let lines = std::fs::read_to_string(&plan).unwrap();
        assert_eq!(lines.lines().count(), 4, "{lines}");
        let (code, error) = forget(&input, &chosen, &both);
        assert!(code == Some(7) && error.contains("exists"), "{code:?} {error}");
        let again = [&both[..], &["-f"]].concat();
        assert_eq!(forget(&input, &chosen, &again).0, Some(0));
        assert_eq!(std::fs::read_to_string(&plan).unwrap(), lines);
        assert_eq!(forget(&input, &taken, &both[..4]).0, Some(0));
        assert!(encoded(&taken) == encoded(&chosen), "{scheme}");
        let kinds: BTreeSet<_> = lines
            .lines()
            .map(|line| line.rsplit_once('=').unwrap().1)
            .collect();
        assert!(kinds.len() > 1, "{lines}");
    }
    let plan = at("w4a16-txt");
    let refused = |scheme: &str, text: &str, what: &str| {
        std::fs::write(&plan, text).unwrap();
        let options = ["--to", scheme, "--plan", plan.to_str().unwrap()];
        let (code, error) = forget(&input, &at("refused.safetensors"), &options);
        assert!(code == Some(2) && error.contains(what), "{code:?} {error}");
    };
    refused("mlx-4bit", "\n# of another\nmodel.layers.0.q_proj.weight=w4a16\n", "line 3");
    refused("w4a16", "model.layers.0.q_proj.weight", "NAME=TYPE");
    refused("w4a16", "model.layers.1.q_proj.weight=w8a16", "no tensor has a name like");
    refused("nf4", "", "several types");
}
