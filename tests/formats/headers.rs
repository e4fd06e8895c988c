//! Malformed headers, configs and containers: each must give the right kind of error, whose message
//! names the tensor or file and the reason. A tensor of an unusual dtype never makes a file
//! unreadable.

use crate::common::verdict::{
    Limit, Parse, Unsupported, parse_beside, recover, tensors, verdict, verdict_of,
};
use crate::common::{assert_same, file};

#[test]
fn configs() {
    let q = file(&tensors("X.weight BF16 4"), &[]);
    let config = |q: &str| format!(r#"{{"quantization_config":{q}}}"#);
    let mut failures = Vec::new();
    let pairs = [
        (r#"{"quant_method":"gptq","bits":4}"#, r#"{"bits":8}"#),
        (r#"{"quant_method":"gptq","bits":4,"group_size":64}"#, r#"{"bits":4,"group_size":128}"#),
        (r#"{"quant_method":"gptq"}"#, r#"{"quant_method":"awq"}"#),
        (r#"{"bits":4,"checkpoint_format":"gptq"}"#, r#"{"bits":4,"checkpoint_format":"gptq_v2"}"#),
        (r#"{"bits":4,"checkpoint_format":"gptq"}"#, r#"{"bits":4,"format":"gptq_v2"}"#),
        (r#"{"bits":4,"sym":true}"#, r#"{"bits":4,"sym":false}"#),
        (r#"{"weight_block_size":[128,128]}"#, r#"{"weight_block_size":[64,64]}"#),
    ];
    for (ours, theirs) in pairs {
        let result =
            parse_beside(&q, &[("config.json", &config(ours)), ("quantize_config.json", theirs)]);
        failures.extend(
            verdict(result, Parse, &["in config.json", "in quantize_config.json"])
                .map(|w| w + theirs),
        );
    }
    let metadata = file(&tensors("X.weight BF16 4"), &[("gptq_bits", "8")]);
    let result = parse_beside(&metadata, &[("config.json", &config(r#"{"bits":4}"#))]);
    failures.extend(verdict(result, Parse, &["config.json", "__metadata__"]));
    for broken in
        ["", "{", "[1,2", "{\"quantization_config\": {}} trailing", "{'a':1}", "{\"a\":\"\u{1}\"}"]
    {
        let result = parse_beside(&q, &[("config.json", broken)]);
        failures.extend(verdict(result, Parse, &["config.json"]).map(|w| w + broken));
    }
    // Python's `json` writes NaN and Infinity, which JSON does not have.
    let python =
        r#"{"time_step_limit": [0.0, Infinity, -Infinity], "x": NaN, "s": "Infinity \" NaN"}"#;
    for fine in ["{}", "null", r#"{"quantization_config":null}"#, python] {
        failures.extend(
            parse_beside(&q, &[("config.json", fine)])
                .err()
                .map(|e| format!("{fine}: {e}")),
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A safetensors file with `json` as its header, byte for byte.
fn with_header(json: &str, data: usize) -> Vec<u8> {
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn headers() {
    let good = file(&tensors("X F32 2; Y F32 2"), &[]);
    let one = |dtype: &str, shape: &str, start: u64, end: u64, data: usize| {
        with_header(&format!("{{{}}}", entry("X", dtype, shape, start, end)), data)
    };
    let two = |a: String, b: String| with_header(&format!("{{{a},{b}}}"), 16);
    let huge = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let eighth = (1u64 << 61) - 1;
    let giant = |i: u64| {
        entry(&format!("X{i}"), "U8", &format!("[{eighth}]"), i * eighth, (i + 1) * eighth) + ","
    };
    let giants: String = (0..8)
        .map(giant)
        .chain([entry("X8", "U8", "[7]", 8 * eighth, 8 * eighth + 7)])
        .collect();
    let files: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["0 bytes"]),
        ("7 bytes", vec![1; 7], &["7 bytes"]),
        ("data cut off", good[..good.len() - 1].to_vec(), &["truncated"]),
        ("header cut off", good[..30].to_vec(), &["header"]),
        ("trailing byte", [&good[..], &[0]].concat(), &["no tensor owns"]),
        ("longer than the file", huge(1000), &["1000"]),
        ("huge", huge(u64::MAX), &["header"]),
        ("nearly huge", huge(u64::MAX - 7), &["header"]),
        ("not JSON", with_header("hello", 0), &["header"]),
        ("not UTF-8", [&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), &["header"]),
        ("not a map", with_header("[]", 0), &["header"]),
        ("deep", with_header(&"[".repeat(100_000), 0), &["header"]),
        (
            "twice",
            two(entry("X", "F32", "[2]", 0, 8), entry("X", "F32", "[2]", 8, 16)),
            &["`X`", "twice"],
        ),
        ("overlap", two(entry("X", "F32", "[2]", 0, 8), entry("Y", "F32", "[3]", 4, 16)), &["`Y`"]),
        ("hole", two(entry("X", "F32", "[1]", 0, 4), entry("Y", "F32", "[2]", 8, 16)), &["`Y`"]),
        ("backwards", one("F32", "[2]", 8, 0, 8), &["`X`"]),
        ("shape and offsets", one("F32", "[3]", 0, 8, 8), &["`X`"]),
        ("shape that overflows", one("F32", "[4294967296,4294967296]", 0, 8, 8), &["`X`"]),
        ("half a byte", one("F4", "[3]", 0, 1, 1), &["`X`"]),
        ("negative dimension", one("F32", "[-2]", 0, 8, 8), &["header"]),
        ("unknown dtype", one("F7", "[1]", 0, 1, 1), &["F7"]),
        ("sizes that overflow together", with_header(&format!("{{{giants}}}"), 8), &[]),
    ];
    let mut failures = String::new();
    for (what, bytes, words) in files {
        let wrong = verdict_of(|| anamnesis::parse_bytes(bytes.clone()), Parse, words);
        failures.extend(wrong.map(|w| format!("\n{what}: {w}")));
        let stream = || anamnesis::parse_safetensors_header_from_reader(&bytes[..]).is_ok();
        failures.extend(
            std::panic::catch_unwind(stream)
                .err()
                .map(|_| format!("\n{what}: panic from a stream")),
        );
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A sparse file as large as its header claims, so that only the limit can refuse it.
#[test]
fn header_limit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), 150_000_000u64.to_le_bytes()).unwrap();
    file.as_file().set_len(200_000_000).unwrap();
    assert_eq!(verdict(anamnesis::parse(file.path()), Limit, &["150000000"]), None);
}

/// `null` metadata is the same as none.
#[test]
fn null_metadata() {
    anamnesis::parse_bytes(with_header("{}", 0)).unwrap();
    anamnesis::parse_bytes(with_header(r#"{"__metadata__":null}"#, 0)).unwrap();
}

/// A safetensors file begins with its header's length, and some lengths look like other formats'
/// magic bytes.
#[test]
fn header_of_any_length() {
    let failures: Vec<usize> = (600..1500)
        .step_by(8)
        .filter(|&n| anamnesis::parse_bytes(with_header(&format!("{:n$}", "{}"), 0)).is_err())
        .collect();
    assert!(failures.is_empty(), "headers of {failures:?} bytes");
}

#[test]
fn other_containers() {
    let files: [(&str, bool, &[u8]); 5] = [
        (
            "GGUF",
            cfg!(feature = "gguf"),
            b"GGUF\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ),
        (
            "ZIP",
            cfg!(any(feature = "npz", feature = "pth")),
            b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ),
        (
            "NumPy",
            cfg!(feature = "npz"),
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False}\n",
        ),
        ("pickle", cfg!(feature = "pth"), b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s."),
        ("pickle", cfg!(feature = "pth"), b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."),
    ];
    for (format, built, bytes) in files {
        let result = anamnesis::parse_bytes(bytes.to_vec());
        let kind = if built && format != "GGUF" {
            Parse
        } else {
            Unsupported
        };
        assert_eq!(
            verdict(
                result,
                kind,
                if built {
                    &[]
                } else {
                    std::slice::from_ref(&format)
                }
            ),
            None,
            "{bytes:?}"
        );
    }
}

#[test]
fn odd_dtypes_pass_through() {
    let odd = "a F4 2,3; b F6_E2M3 4; c F6_E3M2 2,4; d C64 3; e F8_E8M0 5; f BOOL 3; g U16 3; h U64 2; i I64 ()";
    let mut all = tensors(&format!("{odd}; n.weight BF16 3; z F32 0,7"));
    let mut random = crate::common::Random(7);
    all.iter_mut()
        .for_each(|t| t.bytes = random.bytes(t.bytes.len()));
    let input = file(&all, &[]);
    assert_same(&input, &recover(input.clone(), "").unwrap(), "odd dtypes");
}
