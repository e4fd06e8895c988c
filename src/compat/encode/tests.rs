//! Encoders of single tensors.

use super::*;
use crate::compat::round_trip::{
    assert_bnb_int8_decode_encode_round_trip, assert_bnb4_decode_encode_round_trip,
};
use crate::element::{Element, Out};
use crate::lethe::kernels::bnb::nested::dynamic_map;
use crate::lethe::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
use crate::remember::kernels::bnb::Int8Rows;
use crate::remember::kernels::codebook::{CodebookBlocks, PairTable};
use crate::simd::dispatch;
use half::bf16;

fn bf16(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&x| <bf16 as Element>::from_f32(x).to_bits().to_le_bytes())
        .collect()
}

fn decode(codes: &[u8], absmax: &[u8], map: &[u8], n: usize, block: usize) -> Result<Vec<u8>> {
    let mut map = codebook(map)?;
    map[8] = if map[8] == 0.0 { -0.0 } else { map[8] };
    let scales = floats("absmax", absmax, n.div_ceil(block))?;
    let mut out = vec![0.0; n];
    let kernel = CodebookBlocks {
        pairs: &PairTable::new(&map, true),
        bytes: codes,
        start: 0,
        block,
        scales: &scales,
    };
    dispatch(Level::detect(), &kernel, Out::F32(&mut out));
    Ok(bf16(&out))
}

#[test]
fn every_code_returns() {
    let scales = [1.0, 0.05, 3e-5, 1e30, 127.0, 1e-30];
    for map in [NF4_CODEBOOK, FP4_CODEBOOK, FP4_CODEBOOK.map(|x| x + 0.0)] {
        for block in [32, 64] {
            assert_bnb4_decode_encode_round_trip(&map, &scales, block, decode, encode_bnb4)
                .unwrap();
        }
    }
    let decode = |codes: &[u8], scb: &[u8], rows: usize, cols: usize| {
        let (scb, mut out) = (floats("SCB", scb, rows)?, vec![0.0; rows * cols]);
        dispatch(Level::detect(), &Int8Rows { codes, cols, scb: &scb }, Out::F32(&mut out));
        Ok(bf16(&out))
    };
    assert_bnb_int8_decode_encode_round_trip(decode, encode_bnb_int8).unwrap();
}

/// Double-quantized scales give the same codes as the scales that they decode to.
#[test]
fn nested_scales() {
    let (inner, outer, offset) = ([200u8, 128, 255], [0.02f32], 0.07f32);
    let scales = inner.map(|q| dynamic_map()[usize::from(q)] * outer[0] + offset);
    let (map, codes) =
        (bytes_of(&NF4_CODEBOOK), (0..80u8).map(|i| i.wrapping_mul(37)).collect::<Vec<_>>());
    let values = decode(&codes, &bytes_of(&scales), &map, 160, 64).unwrap();
    let (outer, levels) = (bytes_of(&outer), bytes_of(dynamic_map()));
    let again =
        encode_bnb4_double_quant(&values, &inner, &map, &outer, &levels, offset, 160, 64, 256)
            .unwrap();
    assert_eq!(again, codes);
}

/// Slabs and threads change nothing: each block and each row is encoded as it is by itself.
#[test]
fn slabs_are_encoded_as_their_blocks() {
    let n = 3 * crate::compat::slabs::SLAB_VALUES + 2 * 64 + 10;
    let data = bf16(
        &(0..n)
            .map(|i| (i * 7919 % 2003) as f32 - 1001.0)
            .collect::<Vec<_>>(),
    );
    let blocks = || data.chunks(64 * 2);
    for map in [NF4_CODEBOOK, FP4_CODEBOOK].map(|map| bytes_of(&map)) {
        let one = |block: &[u8]| encode_bnb4_compute_absmax(block, &map, block.len() / 2, 64);
        let each: Vec<_> = blocks().map(|block| one(block).unwrap()).collect();
        let (codes, scales): (Vec<_>, Vec<_>) = each.into_iter().unzip();
        let (codes, scales) = (codes.concat(), scales.concat());
        let all = encode_bnb4_compute_absmax(&data, &map, n, 64).unwrap();
        assert!(all == (codes, scales.clone()));
        let given = |(block, scale): (&[u8], &[u8])| {
            encode_bnb4(block, scale, &map, block.len() / 2, 64).unwrap()
        };
        let codes: Vec<_> = blocks().zip(scales.chunks(4)).flat_map(given).collect();
        assert!(encode_bnb4(&data, &scales, &map, n, 64).unwrap() == codes);
    }
    let (rows, cols) = (n / 100, 100);
    let data = &data[..rows * cols * 2];
    let one = |row| encode_bnb_int8_compute_scb(row, 1, cols).unwrap();
    let (codes, scb): (Vec<_>, Vec<_>) = data.chunks(cols * 2).map(one).unzip();
    let scb = scb.concat();
    let all = encode_bnb_int8_compute_scb(data, rows, cols).unwrap();
    assert!(all == (codes.concat(), scb.clone()));
    let given = |(row, scale)| encode_bnb_int8(row, scale, 1, cols).unwrap();
    let codes: Vec<_> = data
        .chunks(cols * 2)
        .zip(scb.chunks(4))
        .flat_map(given)
        .collect();
    assert!(encode_bnb_int8(data, &scb, rows, cols).unwrap() == codes);
}

#[test]
fn nothing_to_encode() {
    let map = bytes_of(&NF4_CODEBOOK);
    assert_eq!(encode_bnb4(&[], &[], &map, 0, 64).unwrap(), [0; 0]);
    let nothing = (vec![], vec![]);
    assert_eq!(encode_bnb4_compute_absmax(&[], &map, 0, 64).unwrap(), nothing);
    assert_eq!(encode_bnb_int8(&[], &[], 0, 1 << 20).unwrap(), [0; 0]);
    assert_eq!(encode_bnb_int8_compute_scb(&[], 0, 1 << 20).unwrap(), nothing);
    assert_eq!(encode_bnb_int8_compute_scb(&[], 2, 0).unwrap().1, [0; 8]);
    assert!(encode_bnb_int8_compute_scb(&[], usize::MAX, 0).is_err());
}

#[test]
fn lengths_and_values_that_do_not_fit() {
    let (map, values) = (bytes_of(&NF4_CODEBOOK), bf16(&[1.0; 64]));
    assert!(encode_bnb4(&values, &[0; 4], &map, 64, 64).is_ok());
    assert!(encode_bnb4(&values, &[0; 8], &map, 64, 64).is_err());
    assert!(encode_bnb4(&values, &[0; 4], &map[4..], 64, 64).is_err());
    assert!(
        encode_bnb4(&values, &[0; 4], &map, 64, 0).is_err()
            && encode_bnb4(&values, &[0; 4], &map, 64, 63).is_err()
    );
    assert!(encode_bnb4_compute_absmax(&values, &map, usize::MAX, 64).is_err());
    assert!(encode_bnb4_compute_absmax(&bf16(&[f32::NAN, 1.0]), &map, 2, 64).is_err());
    assert!(encode_bnb_int8_compute_scb(&bf16(&[1e5, 1.0]), 1, 2).is_err());
    assert!(encode_bnb_int8(&values, &[0; 4], usize::MAX, 2).is_err());
}
