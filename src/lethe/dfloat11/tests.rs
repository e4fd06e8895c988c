//! Streams against those of dfloat11's encoder, in tiles of several sizes and in any order.

use std::collections::HashMap;

use super::*;
use crate::lethe::kernels::activations::Activations;
use crate::remember::Tile;
use crate::simd::Level;
use crate::test_utils::test_data;

fn weight(shape: &[usize]) -> WeightInfo<'_> {
    WeightInfo { name: "a.weight", shape, dtype: TargetDtype::BF16 }
}

/// Name of each stored tensor with its bytes, encoded in tiles of `tile_rows` rows in the order
/// that `order` makes of them.
fn encode(
    values: &[f32],
    [rows, cols]: [usize; 2],
    tile_rows: usize,
    order: fn(&mut Vec<usize>),
) -> HashMap<String, Vec<u8>> {
    let shape = [rows, cols];
    let tiles: Vec<&[f32]> = values.chunks(tile_rows * cols).collect();
    let counted: Vec<ExponentTile> = tiles
        .iter()
        .map(|values| ExponentTile::of(values))
        .collect();
    let method = DFloat11::default()
        .with_exponents(&counted)
        .unwrap()
        .unwrap();
    let encoder = method.encoder(&weight(&shape)).unwrap();
    let stored = encoder.stored();
    let mut found: Vec<Vec<Option<u8>>> = stored
        .iter()
        .map(|t| vec![None; t.dtype.byte_len(&t.shape).unwrap()])
        .collect();
    let mut numbers: Vec<usize> = (0..tiles.len()).collect();
    order(&mut numbers);
    for i in numbers {
        let first = i * tile_rows;
        let tile = Tile { rows: first..(first + tile_rows).min(rows), cols: 0..cols };
        let mut put = |part: usize, at: u64, bytes: &[u8]| {
            for (at, &byte) in (at as usize..).zip(bytes) {
                assert!(found[part][at].replace(byte).is_none(), "written twice");
            }
            Ok(())
        };
        let values = TileValues {
            tile: &tile,
            values: tiles[i],
            survey: 0.0,
            maxima: &[],
            activations: Activations::default(),
            level: Level::Baseline,
        };
        let mut back = vec![0.0; tiles[i].len()];
        let mut buffers = EncodeBuffers::default();
        encoder
            .encode(&values, &mut buffers, &mut back, &mut put)
            .unwrap();
        assert!(back == tiles[i]);
    }
    let bytes = found
        .into_iter()
        .map(|t| t.into_iter().map(Option::unwrap).collect());
    let names = stored.iter().map(|t| t.name["a.".len()..].to_owned());
    names.zip(bytes).collect()
}

#[test]
fn streams_of_the_library() {
    let Some(data) = test_data() else {
        return;
    };
    let bytes = std::fs::read(data.join("dfloat11_encode/streams.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    while let Ok(values) = all.tensor(&format!("{seen}.values")) {
        let halves = values.data().as_chunks().0.iter();
        let values: Vec<f32> = halves
            .map(|&b| half::bf16::from_le_bytes(b).to_f32())
            .collect();
        let n = values.len();
        let reversed: fn(&mut Vec<usize>) = |order| order.reverse();
        for (tile_rows, order) in [
            (n, reversed),
            (1, reversed),
            (5, reversed),
            (700, |_| {}),
            (13, |order| order.rotate_left(1)),
        ] {
            for (name, bytes) in encode(&values, [n, 1], tile_rows, order) {
                let want = all.tensor(&format!("{seen}.{name}")).unwrap();
                assert!(bytes == want.data(), "{seen} {name} {tile_rows}");
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 32);
}

/// A tensor that changes between planning and encoding is an error, never a stream that does not
/// fit.
#[test]
fn changed_values() {
    let values: Vec<f32> = (0..100).map(|i| (i % 7) as f32).collect();
    let counted = [ExponentTile::of(&values)];
    let method = DFloat11::default()
        .with_exponents(&counted)
        .unwrap()
        .unwrap();
    let encoder = method.encoder(&weight(&[10, 10])).unwrap();
    for other in [1.0, 1e30] {
        let mut changed = values.clone();
        changed[42] = other;
        let tile = Tile { rows: 0..10, cols: 0..10 };
        let values = TileValues {
            tile: &tile,
            values: &changed,
            survey: 0.0,
            maxima: &[],
            activations: Activations::default(),
            level: Level::Baseline,
        };
        let (mut buffers, mut back) = (EncodeBuffers::default(), vec![0.0; 100]);
        let result = encoder.encode(&values, &mut buffers, &mut back, &mut |_, _, _| Ok(()));
        match other {
            1.0 => assert!(result.is_ok() || result.unwrap_err().to_string().contains("a.weight")),
            _ => assert!(result.unwrap_err().to_string().contains("a.weight")),
        }
    }
}

#[test]
fn objections_say_why() {
    let objection = |shape: &[usize], dtype| {
        let weight = WeightInfo { dtype, ..weight(shape) };
        DFloat11::default().objection(&weight)
    };
    assert_eq!(objection(&[3, 5], TargetDtype::BF16), None);
    assert!(
        objection(&[3, 5], TargetDtype::F16)
            .unwrap()
            .contains("BF16 alone")
    );
    assert!(
        objection(&[5], TargetDtype::BF16)
            .unwrap()
            .contains("dimensions")
    );
    assert!(
        objection(&[1 << 14, 1 << 18], TargetDtype::BF16)
            .unwrap()
            .contains("32 bits")
    );
    assert!(
        objection(&[2, 1 << 20], TargetDtype::BF16)
            .unwrap()
            .contains("rows")
    );
}

#[test]
fn patterns_of_modules() {
    let keys = |modules: &[&str]| -> Vec<String> {
        let config = config::config(modules);
        config["pattern_dict"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let modules = [
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k-proj",
        "model.layers.11.self_attn.q_proj",
        "blocks.0.net.2",
    ];
    assert_eq!(
        keys(&modules),
        [
            r"blocks\.\d+\.net\.\d+",
            "lm_head",
            r"model\.embed_tokens",
            r"model\.layers\.\d+\.self_attn\.(?:q_proj|k\-proj)",
        ]
    );
    let many: Vec<String> = (0..65u8).map(|i| format!("a{i}.b")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(keys(&many).len(), 1);
}
