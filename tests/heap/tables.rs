//! Files whose headers, configs or indexes have many small items: the tables made of them stay in
//! proportion to the files.

use std::fmt::Write as _;
use std::path::Path;

use anamnesis::{RememberOptions, TargetDtype, parse};

use crate::common::effort;
use crate::profiler::Profiler;

/// Bytes of memory that a model may take, beside eight for each of its own.
const MEMORY: usize = 64 << 20;

const WEIGHTS: &str = "model.safetensors";

/// `n` items, joined by commas.
fn items(n: usize, item: impl Fn(usize) -> String) -> String {
    let mut out = String::new();
    for i in 0..n {
        let comma = if i == 0 { "" } else { "," };
        write!(out, "{comma}{}", item(i)).unwrap();
    }
    out
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &vec![0; data]].concat()
}

/// A safetensors file of empty tensors: `name dtype` each.
fn empty(tensors: &[&str]) -> Vec<u8> {
    let entry = |i: usize| {
        let (name, dtype) = tensors[i].split_once(' ').unwrap();
        format!(r#""{name}":{{"dtype":"{dtype}","shape":[0,0],"data_offsets":[0,0]}}"#)
    };
    safetensors(&format!("{{{}}}", items(tensors.len(), entry)), 0)
}

/// A GGUF header of `keys` keys with a byte each and `tensors` empty tensors.
fn gguf(keys: usize, tensors: usize) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors as u64).to_le_bytes());
    out.extend((keys as u64).to_le_bytes());
    let name = |i: usize| {
        let name = format!("{i:x}");
        [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat()
    };
    for i in 0..keys {
        out.extend(name(i));
        out.extend([0, 0, 0, 0, 1]);
    }
    for i in 0..tensors {
        out.extend(name(i));
        out.extend([1, 0, 0, 0]);
        out.extend([0; 8 + 4 + 8]);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out
}

/// Stacks of experts of MLX with few bytes each.
fn stacks(n: usize) -> Vec<u8> {
    let (mut at, mut header) = (0, Vec::new());
    for i in 0..n {
        let parts = [("weight", "U32", 4, 16), ("scales", "BF16", 1, 2), ("biases", "BF16", 1, 2)];
        for (part, dtype, cols, bytes) in parts {
            let (start, end) = (at, at + 4096 * bytes);
            header.push(format!(
                r#""l.{i}.switch_mlp.up_proj.{part}":{{"dtype":"{dtype}","shape":[4096,1,{cols}],"data_offsets":[{start},{end}]}}"#
            ));
            at = end;
        }
    }
    safetensors(&format!("{{{}}}", header.join(",")), at)
}

type Row = (&'static str, Vec<(&'static str, Vec<u8>)>);

fn rows() -> Vec<Row> {
    // Half of them take half the time, and still far more than a model may.
    let n = |all: usize| all / effort([2, 1, 1]);
    let one = || (WEIGHTS, empty(&["a.weight U8"]));
    let config = |text: String| ("config.json", text.into_bytes());
    let quantization = |text: String| config(format!(r#"{{"quantization_config":{{{text}}}}}"#));
    let metadata = |text: String| {
        let entry = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let header = format!(r#"{{"__metadata__":{{{text}}},{entry}}}"#);
        (WEIGHTS, safetensors(&header, 0))
    };
    let tensors = items(n(200_000), |i| {
        format!(r#""{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)
    });
    let packed = (WEIGHTS, empty(&["a.weight_packed I32", "a.weight_scale F16"]));
    let mlx = (WEIGHTS, empty(&["a.weight U32", "a.scales F16"]));
    // A name of torchao's is that of the parameter and that of the part: long, times many.
    let parts = items(n(20_000), |i| format!(r#"\"{i:x}\""#));
    let names = format!(
        r#""{}.b":"{{\"_type\":\"\",\"_tensor_data_names\":[{parts}]}}""#,
        "a".repeat(50_000)
    );
    vec![
        ("tensors", vec![(WEIGHTS, safetensors(&format!("{{{tensors}}}"), 0))]),
        ("metadata", vec![metadata(items(n(1_000_000), |i| format!(r#""{i:x}":"""#)))]),
        ("names of torchao", vec![metadata(names)]),
        ("keys of GGUF", vec![("model.gguf", gguf(n(1_000_000), 0))]),
        ("tensors of GGUF", vec![("model.gguf", gguf(0, n(300_000)))]),
        (
            "objects of a config",
            vec![
                one(),
                quantization(format!(r#""a":[{}]"#, items(n(300_000), |_| r#"{"a":0}"#.into()))),
            ],
        ),
        (
            "zeros of a config",
            vec![one(), config(format!(r#"{{"a":[{}]}}"#, items(n(2_000_000), |_| "0".into())))],
        ),
        (
            "modules of ModelOpt",
            vec![
                one(),
                (
                    "hf_quant_config.json",
                    format!(
                        r#"{{"quantization":{{"quantized_layers":{{{}}}}}}}"#,
                        items(n(44_000), |i| format!(r#""m.{i}":{{"a":{i}}}"#))
                    )
                    .into_bytes(),
                ),
            ],
        ),
        (
            "modules of MLX",
            vec![
                mlx,
                config(format!(
                    r#"{{"quantization":{{"bits":4,"group_size":64,{}}}}}"#,
                    items(n(200_000), |i| format!(r#""a.{i:x}":{{}}"#))
                )),
            ],
        ),
        (
            "groups of compressed-tensors",
            vec![
                packed,
                quantization(format!(
                    r#""quant_method":"compressed-tensors","config_groups":{{{}}}"#,
                    items(n(30_000), |i| format!(
                        r#""{i:x}":{{"weights":{{}},"targets":["a.{i:x}"]}}"#
                    ))
                )),
            ],
        ),
        (
            "an index",
            vec![
                one(),
                (
                    "model.safetensors.index.json",
                    format!(
                        r#"{{"weight_map":{{"a.weight":"{WEIGHTS}",{}}}}}"#,
                        items(n(200_000), |i| format!(r#""{i:x}":"{WEIGHTS}""#))
                    )
                    .into_bytes(),
                ),
            ],
        ),
        (
            "experts of MLX",
            vec![
                (WEIGHTS, stacks(60)),
                config(
                    r#"{"model_type":"qwen3_moe","quantization":{"bits":4,"group_size":32}}"#
                        .into(),
                ),
            ],
        ),
    ]
}

#[test]
fn many_small_items() {
    let profiler = Profiler::new();
    let mut failures = String::new();
    for (what, files) in rows() {
        let root = crate::common::tempdir().unwrap();
        let dir = root.path().join("in");
        std::fs::create_dir(&dir).unwrap();
        for (name, bytes) in &files {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        let len: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        drop(files);
        let out = root.path().join("out");
        let (peak, ()) = profiler.peak(|| everything(&dir, &out));
        println!("{what}: {peak} bytes for {len}");
        if peak > MEMORY + 8 * len {
            writeln!(failures, "{what}: {peak} bytes of memory for {len} of files").unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The `zip` crate keeps the extra fields that it parses, empty ones as well. Here they are parsed
/// one entry at a time, and beside the directory there are only names and numbers.
#[cfg(all(feature = "npz", feature = "pth"))]
#[test]
fn extra_fields_of_archives() {
    use crate::common::zip::{Member, Zip, zeros};
    let profiler = Profiler::new();
    let empty_fields = [9, 9, 0, 0].repeat(500);
    let array = |i| Member::stored(&format!("{i}.npy"), &zeros(1));
    let members: Vec<_> = (0..3000)
        .map(|i| array(i).central(|entry| entry.extra = empty_fields.clone()))
        .collect();
    let file = Zip::of(&members).file();
    let directory = 3000 * empty_fields.len();
    let read = || zip::ZipArchive::new(std::io::Cursor::new(&file)).unwrap();
    let (of_the_crate, archive) = profiler.peak(read);
    assert_eq!(archive.len(), 3000);
    drop(archive);
    let read = || anamnesis::inspect_npz_from_reader(std::io::Cursor::new(&file)).unwrap();
    let (ours, info) = profiler.peak(read);
    assert_eq!(info.tensors.len(), 3000);
    println!("{ours} bytes, {of_the_crate} of the crate, for {directory}");
    assert!(ours < 2 * directory, "{ours} for {directory}");
    assert!(of_the_crate > 8 * directory, "{of_the_crate} for {directory}");
}

/// What `inspect` and `remember` do. Whether the model is read or refused does not matter.
fn everything(dir: &Path, out: &Path) {
    if let Ok(model) = parse(dir) {
        std::hint::black_box(model.inspect());
        let options = RememberOptions::new(TargetDtype::BF16).with_threads(2);
        let _ = model.remember(out, options);
    }
}
