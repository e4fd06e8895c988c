//! Matrices that are stored transposed, and so large that their jobs read stored rows together:
//! whatever the threads do, the output is that of a model in memory, where each tile takes its own
//! bytes.

use std::fs::OpenOptions;

use anamnesis::{AnamnesisError, ConvertOptions, RememberOptions, TargetDtype, parse, parse_bytes};
use half::f16;

use crate::common::{Random, Raw, effort, file, raw};

/// Inputs of the layers: each output row takes so many values.
const INPUTS: usize = 1024;

/// Outputs of the layers, so that they have several tiles.
const OUTPUTS: usize = 4096;

fn scales(random: &mut Random, count: usize) -> Vec<u8> {
    let scales = random.floats(count).into_iter();
    scales
        .flat_map(|v| f16::from_f32(v).to_le_bytes())
        .collect()
}

fn awq(random: &mut Random) -> Vec<Raw> {
    let (groups, words) = (INPUTS / 128, OUTPUTS / 8);
    vec![
        raw("a.qweight", "I32", &[INPUTS, words], random.bytes(INPUTS * words * 4)),
        raw("a.qzeros", "I32", &[groups, words], random.bytes(groups * words * 4)),
        raw("a.scales", "F16", &[groups, OUTPUTS], scales(random, groups * OUTPUTS)),
    ]
}

/// Four bits, with the groups of the columns in any order.
fn gptq(random: &mut Random) -> Vec<Raw> {
    let groups = INPUTS / 128;
    let index = (0..INPUTS).map(|_| (random.next() >> 40) as usize % groups);
    let index: Vec<u8> = index.flat_map(|g| (g as i32).to_le_bytes()).collect();
    let words = [INPUTS / 8, groups * OUTPUTS / 8];
    vec![
        raw("g.qweight", "I32", &[words[0], OUTPUTS], random.bytes(words[0] * OUTPUTS * 4)),
        raw("g.qzeros", "I32", &[groups, OUTPUTS / 8], random.bytes(words[1] * 4)),
        raw("g.scales", "F16", &[groups, OUTPUTS], scales(random, groups * OUTPUTS)),
        raw("g.g_idx", "I32", &[INPUTS], index),
    ]
}

/// Two matrices of gpt-oss, each of which has several tiles.
fn experts(random: &mut Random) -> Vec<Raw> {
    let blocks = 2 * INPUTS * OUTPUTS / 32;
    let exponents = random.bytes(blocks).into_iter().map(|b| 120 + b % 8);
    let name = "model.layers.0.mlp.experts.down_proj";
    let shape = [2, INPUTS, OUTPUTS / 32, 16];
    vec![
        raw(&format!("{name}_blocks"), "U8", &shape, random.bytes(blocks * 16)),
        raw(&format!("{name}_scales"), "U8", &shape[..3], exponents.collect()),
    ]
}

#[test]
fn rows_that_are_read_together_give_the_same_output() {
    let random = &mut Random(77);
    let dir = crate::common::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let layers = [awq(random), gptq(random), experts(random)].concat();
    let bytes = file(&layers, &[]);
    std::fs::write(&path, &bytes).unwrap();
    let target = TargetDtype::BF16;
    let expected = parse_bytes(bytes)
        .unwrap()
        .remember_to_bytes(target)
        .unwrap();
    let model = parse(&path).unwrap();
    for &threads in effort([&[5][..], &[1, 2, 5], &[1, 2, 5]]) {
        let run = RememberOptions::new(target).with_threads(threads);
        let out = dir.path().join("out.safetensors");
        model.remember(&out, &run).unwrap();
        assert!(std::fs::read(&out).unwrap() == expected, "{threads} threads");
        std::fs::remove_file(&out).unwrap();
    }
    // Files side by side have less memory each, and a stream has pieces of tensors.
    let run = RememberOptions::new(target).with_threads(2);
    let mut written = Vec::new();
    model.remember_to_writer(&mut written, &run).unwrap();
    assert!(written == expected, "in order");
    let shards = dir.path().join("shards");
    let options = ConvertOptions::from(&run).with_max_shard_size(1 << 20);
    model.convert(&shards, &options).unwrap();
    let joined = parse(&shards).unwrap().remember_to_bytes(target).unwrap();
    assert!(joined == expected, "in shards");
}

#[test]
fn rows_that_cannot_be_read_are_an_error_of_their_tensor() {
    let dir = crate::common::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let bytes = file(&awq(&mut Random(78)), &[]);
    std::fs::write(&path, &bytes).unwrap();
    for threads in [1, 3] {
        let model = parse(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 / 2).unwrap();
        let run = RememberOptions::new(TargetDtype::BF16).with_threads(threads);
        let error = model
            .remember(dir.path().join("out.safetensors"), &run)
            .unwrap_err();
        assert!(matches!(error, AnamnesisError::Io(_)), "{error}");
        assert!(error.to_string().contains("a.qweight"), "{error}");
        std::fs::write(&path, &bytes).unwrap();
    }
}
