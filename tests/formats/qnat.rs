//! QNAT files by qlora-rs's own writer (tests/data/qnat/README.md) against its own decoding.

use std::collections::HashSet;

use anamnesis::{TargetDtype, parse, parse_bytes};

use crate::common::verdict::{Kind, Limit, Parse, Unsupported, verdict_of};
use crate::common::{Random, assert_same, data};

fn index() -> Vec<serde_json::Value> {
    let text = std::fs::read(data().join("qnat/index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&text).unwrap();
    index["cases"].as_array().unwrap().clone()
}

/// Describes how the decoded tensors of a case differ from the expected ones.
fn check(case: &serde_json::Value) -> Option<String> {
    let name = case["name"].as_str().unwrap();
    let path = data().join(format!("qnat/{name}.qnat"));
    let stated: Vec<&str> = case["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    let distinct: HashSet<&str> = stated.iter().copied().collect();
    if distinct.len() < stated.len() {
        // Of two tensors of one name only one could be asked for.
        let found = verdict_of(|| parse(&path), Parse, &["twice"]);
        return found.map(|found| format!("\n{name}: {found}"));
    }
    let model = match parse(&path) {
        Ok(model) => model,
        Err(e) => return Some(format!("\n{name}: {e}")),
    };
    let listed: Vec<&str> = model.tensors().map(|t| t.name()).collect();
    if listed != stated {
        return Some(format!("\n{name}: {listed:?} where {stated:?} are"));
    }
    let by_block = data().join(format!("qnat/{name}.by_block.safetensors"));
    let expected = if by_block.is_file() {
        by_block
    } else {
        data().join(format!("qnat/{name}.expected.safetensors"))
    };
    let got = model.remember_to_bytes(TargetDtype::F32).unwrap();
    let same =
        std::panic::catch_unwind(|| assert_same(&std::fs::read(expected).unwrap(), &got, ""));
    same.err()
        .map(|e| format!("\n{name}: {:?}", e.downcast_ref::<String>()))
}

#[test]
fn files_of_the_real_writer() {
    let cases = index();
    assert!(cases.len() >= 116);
    let failures: Vec<String> = cases.iter().filter_map(check).collect();
    assert!(failures.is_empty(), "{} of {}: {}", failures.len(), cases.len(), failures.concat());
}

/// A file of one tensor with these header fields and `data` bytes of zeros.
fn file(version: u32, shape: &[u64], block: u32, blocks: u32, data: usize) -> Vec<u8> {
    let mut out = b"QNAT".to_vec();
    out.extend(version.to_le_bytes());
    out.extend([0; 12]);
    out.extend(1u32.to_le_bytes());
    out.extend([0; 4]);
    for text in ["m", "t"] {
        out.extend(1u32.to_le_bytes());
        out.extend(text.bytes());
    }
    out.push(0);
    out.extend([1, 0, 0, 0, b'w']);
    out.extend((shape.len() as u32).to_le_bytes());
    shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(block.to_le_bytes());
    out.extend(1234u64.to_le_bytes());
    out.extend(blocks.to_le_bytes());
    if version == 2 {
        out.extend([0; 4]);
    }
    out.resize(out.len() + data, 0);
    out
}

#[test]
fn contradictions_are_errors() {
    let good = |version| file(version, &[2, 64], 64, 2, 64 + 8);
    assert!(parse_bytes(good(1)).is_ok() && parse_bytes(good(2)).is_ok());
    let edit = |at: usize, bytes: &[u8]| {
        let mut file = good(1);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let rows: [(&str, Vec<u8>, Kind); 12] = [
        ("version 0", edit(4, &[0]), Unsupported),
        ("version 3", edit(4, &[3]), Unsupported),
        ("more tensors than there are", edit(20, &[2]), Parse),
        ("too many tensors", edit(20, &[0xff; 4]), Limit),
        ("no tensors, and data", edit(20, &[0]), Parse),
        ("a name without end", edit(28, &[0xff; 4]), Limit),
        ("an unknown compute dtype", edit(38, &[3]), Parse),
        ("blocks that are not the values", file(1, &[2, 64], 64, 3, 72), Parse),
        ("a shape that overflows", file(1, &[u64::MAX, 2], 64, 2, 72), Parse),
        ("too many dimensions", file(1, &[1; 65], 1, 1, 5), Limit),
        ("a byte too many", file(1, &[2, 64], 64, 2, 73), Parse),
        ("a byte too few", file(2, &[2, 64], 64, 2, 71), Parse),
    ];
    let wrong: Vec<_> = rows
        .into_iter()
        .filter_map(|(what, bytes, kind)| {
            Some((what, verdict_of(|| parse_bytes(bytes), kind, &[])?))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn truncations_and_mutations() {
    let names = ["v1_both", "v2_both", "v1_channel_double_quant", "v2_double_quant"];
    let files = names.map(|name| std::fs::read(data().join(format!("qnat/{name}.qnat"))).unwrap());
    for (file, name) in files.iter().zip(names) {
        let read = (0..file.len())
            .filter(|&n| parse_bytes(file[..n].to_vec()).is_ok())
            .count();
        // Version 1 has no lengths of its parts: a file cut between two parts looks like one
        // without the later parts.
        assert!(read <= if name.starts_with("v1") { 3 } else { 0 }, "{name}: {read} lengths");
    }
    let mut random = Random(9);
    for i in 0..4000 {
        let mut bytes = files[i % files.len()].clone();
        for _ in 0..1 + random.next() % 3 {
            let at = random.next() as usize % bytes.len().min(200);
            bytes[at] = random.next() as u8;
        }
        if let Ok(model) = parse_bytes(bytes) {
            let _ = model.inspect();
            let _ = model.remember_to_bytes(TargetDtype::BF16);
        }
    }
}

/// Encoding the quantizer's inputs gives the real writer's bytes where it uses the same block size,
/// and a file that can be read back.
#[cfg(feature = "lethe")]
#[test]
fn written_like_the_real_writer() {
    let mut equal = 0;
    for case in index()
        .iter()
        .filter(|case| case["version"] == 1 && case["input"].is_string())
    {
        let name = case["name"].as_str().unwrap();
        let input = data().join("qnat").join(case["input"].as_str().unwrap());
        let model = parse(&input).unwrap();
        let written = match model
            .plan(anamnesis::ConvertTarget::Qnat)
            .and_then(|r| r.to_bytes())
        {
            Ok(written) => written,
            // The real writer gives NaN the code of the lowest level.
            Err(e) if name.contains("hostile") => {
                assert!(
                    e.to_string()
                        .contains("tensor `weight`, row 1, column 3: NaN"),
                    "{name}: {e}"
                );
                continue;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        let again = parse_bytes(written.clone()).unwrap();
        assert_eq!(again.tensors().len(), model.tensors().len());
        again.remember_to_bytes(TargetDtype::BF16).unwrap();
        let plain = case["tensors"].as_array().unwrap().iter().all(|t| {
            t["zero_points"] == false
                && t["double_quant"] == false
                && t["block_size"] == 64
                && t["shape"].as_array().is_some()
        });
        let default = case["model_name"] == "qlora-model"
            && case["model_type"] == "qlora"
            && case["compute_dtype"] == "F32";
        if plain
            && default
            && std::fs::read(data().join(format!("qnat/{name}.qnat"))).unwrap() == written
        {
            equal += 1;
        } else if plain && default {
            panic!("{name}: written differently");
        }
    }
    assert!(equal >= 2, "{equal}");
}
