//! Rotated weights of PrismML and 1bit-MONSTER: what outputs say of them, and metadata that is not
//! understood.

use anamnesis::{ConvertOptions, ConvertTarget, Dtype, TargetDtype, parse, parse_bytes};
use safetensors::SafeTensors;

use crate::common::data;
use crate::common::gguf::{Gguf, string};
use crate::common::verdict::{Parse, Unsupported, verdict};

fn rotated() -> anamnesis::ParsedModel {
    parse(data().join("prism/rotated/model.gguf")).unwrap()
}

/// Keys of rotations in the metadata of a GGUF file.
fn keys(file: Vec<u8>) -> usize {
    let model = parse_bytes(file).unwrap();
    let metadata = model.gguf().unwrap().metadata();
    metadata.keys().filter(|k| k.starts_with("prism.")).count()
}

/// A copy is rotated, and says so; what is decoded is not, and says nothing.
#[test]
fn outputs_say_what_they_are() {
    let model = rotated();
    let copy = model.plan(ConvertOptions::new(ConvertTarget::Gguf));
    assert_eq!(keys(copy.unwrap().to_bytes().unwrap()), 10);
    let decoded = ConvertOptions::new(ConvertTarget::Gguf).with_decode(true);
    let decoded = model.plan(decoded).unwrap().to_bytes().unwrap();
    assert_eq!(keys(decoded.clone()), 0);
    let values = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    assert!(!String::from_utf8_lossy(&values).contains("prism.hadamard"));
    let again = parse_bytes(decoded).unwrap();
    let again = again.remember_to_bytes(TargetDtype::BF16).unwrap();
    let [one, two] = [&values, &again].map(|file| SafeTensors::deserialize(file).unwrap());
    for (name, t) in one.tensors() {
        assert!(two.tensor(&name).unwrap().data() == t.data(), "{name}");
    }
}

/// Blocks that are not encoded are decoded: a file without keys of rotations has no rotated blocks.
#[cfg(feature = "lethe")]
#[test]
fn encoded_files_have_no_rotated_blocks() {
    use anamnesis::{Forget, ForgetScheme};

    let mut forget = Forget::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
    forget.include = vec!["blk.0.ffn_down.weight".to_owned()];
    let options = ConvertOptions::from(forget);
    let file = rotated().plan(options).unwrap().to_bytes().unwrap();
    assert_eq!(keys(file.clone()), 0);
    let model = parse_bytes(file).unwrap();
    let dtype = |name| model.tensor(name).unwrap().dtype();
    assert_eq!(dtype("blk.0.ffn_down.weight"), Dtype::Q8_0);
    assert!(!dtype("blk.0.ssm_out.weight").is_quantized());
}

/// Files of 1bit-MONSTER: another size than 32 is not known, and a table that is the head as well
/// would be rotated and plain.
#[test]
fn rotations_of_q4_0_that_are_not_understood() {
    let file = |name: &str, kind: u32, value: &[u8]| {
        let file = Gguf::default().key("onebit.hadamard_q4_0", kind, value);
        parse_bytes(file.tensor(name, 2, &[32, 2], &[0; 36]).file()).unwrap()
    };
    let rows: [(_, &str, u32, &[u8], &[&str]); 4] = [
        ("32", "blk.0.attn_q.weight", 5, &[32, 0, 0, 0], &[]),
        ("64", "blk.0.attn_q.weight", 5, &[64, 0, 0, 0], &["`onebit.hadamard_q4_0`"]),
        ("no number", "blk.0.attn_q.weight", 7, &[1], &["`onebit.hadamard_q4_0`"]),
        ("tied", "token_embd.weight", 5, &[32, 0, 0, 0], &["`token_embd.weight`", "head"]),
    ];
    for (what, name, kind, value, words) in rows {
        let decoded = file(name, kind, value).remember_to_bytes(TargetDtype::F32);
        match words {
            [] => assert!(decoded.is_ok(), "{what}"),
            _ => assert_eq!(verdict(decoded.map(drop), Unsupported, words), None, "{what}"),
        }
    }
    let model = parse(data().join("prism/rotated_q4_0/model.gguf")).unwrap();
    for (decodes, is_kept) in [(false, true), (true, false)] {
        let options = ConvertOptions::new(ConvertTarget::Gguf).with_decode(decodes);
        let file = model.plan(options).unwrap().to_bytes().unwrap();
        let output = parse_bytes(file).unwrap();
        let metadata = output.gguf().unwrap().metadata();
        assert_eq!(metadata.get("onebit.hadamard_q4_0").is_some(), is_kept);
    }
    // The metadata of safetensors is written into GGUF files that are made of it.
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    let file = model.plan(options).unwrap().to_bytes().unwrap();
    let metadata = parse_bytes(file).unwrap().metadata().clone();
    assert!(metadata.keys().any(|key| key.starts_with("gguf.")), "others stay");
    assert_eq!(metadata.get("gguf.onebit.hadamard_q4_0"), None);
}

const W: &str = "w.ssm_out.weight";

/// A file with a rotated weight of F32, two rows of `cols` zeros, and `keys` in place of those of
/// the same name; those of type 99 are missing.
fn file_with(keys: &[(&str, u32, Vec<u8>)], cols: u64) -> Vec<u8> {
    let number = |n: u32| n.to_le_bytes().to_vec();
    let list = |kind: u32, n: u64, items: &[u8]| {
        [&kind.to_le_bytes()[..], &n.to_le_bytes(), items].concat()
    };
    let all = [
        ("version", 4, number(1)),
        ("block_size", 4, number(64)),
        ("transform", 8, string("normalized-sylvester-walsh-hadamard")),
        ("axis", 8, string("input-last-dimension")),
        ("sign_mode", 8, string("identity")),
        ("weight_names", 9, list(8, 1, &string(W))),
    ];
    let kept = all.iter().filter(|a| keys.iter().all(|k| k.0 != a.0));
    let add = |file: Gguf, (key, kind, value): &(&str, u32, Vec<u8>)| {
        file.key(&format!("prism.hadamard.{key}"), *kind, value)
    };
    let file = kept
        .chain(keys)
        .filter(|k| k.1 < 99)
        .fold(Gguf::default(), add);
    file.tensor(W, 0, &[cols, 2], &vec![0; cols as usize * 8])
        .file()
}

#[test]
fn metadata_that_is_not_understood() {
    let ints = |items: &[i32]| {
        let bytes: Vec<u8> = items.iter().flat_map(|i| i.to_le_bytes()).collect();
        [&5u32.to_le_bytes()[..], &(items.len() as u64).to_le_bytes(), &bytes].concat()
    };
    let number = |n: u32| n.to_le_bytes().to_vec();
    let explicit = || ("sign_mode", 8, string("explicit"));
    let rows: Vec<(Vec<_>, u64, _, &[&str])> = vec![
        (vec![("version", 4, number(3))], 128, Unsupported, &["version"]),
        (vec![("version", 99, vec![])], 128, Unsupported, &["`version`"]),
        (vec![("block_size", 4, number(48))], 192, Unsupported, &["48"]),
        (vec![("block_size", 4, number(1 << 31))], 128, Unsupported, &["2147483648"]),
        (vec![("transform", 8, string("dct"))], 128, Unsupported, &["dct"]),
        (vec![("axis", 8, string("rows"))], 128, Unsupported, &["rows"]),
        (vec![("sign_mode", 8, string("random"))], 128, Unsupported, &["random"]),
        (vec![("weight_names", 99, vec![])], 128, Unsupported, &["`weight_names`"]),
        (vec![explicit()], 128, Unsupported, &["`sign_widths`"]),
        (
            vec![explicit(), ("sign_widths", 9, ints(&[4])), ("sign_values", 9, ints(&[1, 1]))],
            128,
            Unsupported,
            &["`sign_widths`"],
        ),
        (
            vec![explicit(), ("sign_widths", 9, ints(&[2])), ("sign_values", 9, ints(&[1, 0]))],
            128,
            Unsupported,
            &["`sign_values`"],
        ),
        (
            vec![explicit(), ("sign_widths", 9, ints(&[2])), ("sign_values", 9, ints(&[1, 1]))],
            128,
            Parse,
            &[W, "128"],
        ),
        (vec![], 96, Parse, &[W, "64"]),
        (vec![("gdn_v_grouped", 7, vec![1])], 128, Unsupported, &["group_count"]),
    ];
    for (keys, cols, kind, words) in rows {
        let model = parse_bytes(file_with(&keys, cols)).unwrap();
        let result = model.remember_to_bytes(TargetDtype::F32);
        assert_eq!(verdict(result, kind, words), None, "{words:?}");
    }
}

/// Floats are rotated back as well, and keep their type.
#[test]
fn plain_floats() {
    let mut file = file_with(&[], 128);
    let first = file.len() - 1024;
    file[first..first + 4].copy_from_slice(&8f32.to_le_bytes());
    let model = parse_bytes(file).unwrap();
    let decoded = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    let tensors = SafeTensors::deserialize(&decoded).unwrap();
    let values = tensors.tensor(W).unwrap();
    assert_eq!(values.dtype(), safetensors::Dtype::F32);
    // The first row of Sylvester's matrix over the root of 64, times 8.
    let mut want = vec![0f32; 256];
    want[..64].fill(1.0);
    let want: Vec<u8> = want.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert!(values.data() == want);
}
