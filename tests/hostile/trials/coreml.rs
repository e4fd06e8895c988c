//! Models of Core ML that are malformed or hostile.

use super::message::{bytes, number, varint};
use super::{edit_count, mutate, recover_everything};
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::{Random, data, tempdir};
use crate::monitor::Monitor;
use crate::trials::Trial;

const BOOL: u64 = 1;
const F16: u64 = 10;
const F32: u64 = 11;
const I8: u64 = 21;
const I32: u64 = 23;
const U8: u64 = 31;
const U32: u64 = 33;
const U2: u64 = 36;
const U1: u64 = 37;
const U3: u64 = 39;

/// A model of a kind, by the number of its field.
fn model(kind: u64, message: impl AsRef<[u8]>) -> Vec<u8> {
    let description = bytes(2, bytes(1, bytes(1, "x")));
    [number(1, 9), description, bytes(kind, message)].concat()
}

/// A program of one function with these operations.
fn program(operations: &[Vec<u8>]) -> Vec<u8> {
    let block: Vec<u8> = operations.iter().flat_map(|op| bytes(3, op)).collect();
    let function = [bytes(2, "o"), bytes(3, [bytes(1, "o"), bytes(2, block)].concat())].concat();
    model(502, bytes(2, [bytes(1, "main"), bytes(2, function)].concat()))
}

fn value_type(kind: u64, shape: &[u64]) -> Vec<u8> {
    let dims = shape.iter().map(|&dim| bytes(3, bytes(1, number(1, dim))));
    bytes(1, [number(1, kind), dims.collect::<Vec<_>>().concat()].concat())
}

/// A value whose elements are in a field of a tensor.
fn value(kind: u64, shape: &[u64], field: u64, elements: &[u8]) -> Vec<u8> {
    let tensor = bytes(field, bytes(1, elements));
    [bytes(2, value_type(kind, shape)), bytes(3, bytes(1, tensor))].concat()
}

/// A value whose elements are bytes.
fn raw(kind: u64, shape: &[u64], elements: &[u8]) -> Vec<u8> {
    value(kind, shape, 7, elements)
}

/// A value in another file.
fn blob(kind: u64, shape: &[u64], file: &str, at: u64) -> Vec<u8> {
    let place = [bytes(1, file), number(2, at)].concat();
    [bytes(2, value_type(kind, shape)), bytes(5, place)].concat()
}

fn constant(name: &str, value: Vec<u8>) -> Vec<u8> {
    let attribute = bytes(5, [bytes(1, "val"), bytes(2, value)].concat());
    [bytes(1, "const"), bytes(3, bytes(1, name)), attribute].concat()
}

/// An operation that takes values.
fn operation(kind: &str, outputs: &[&str], inputs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let input = |(key, value): &(&str, Vec<u8>)| {
        bytes(2, [bytes(1, key), bytes(2, bytes(1, bytes(2, value)))].concat())
    };
    let outputs: Vec<Vec<u8>> = outputs
        .iter()
        .map(|name| bytes(3, bytes(1, name)))
        .collect();
    let inputs: Vec<Vec<u8>> = inputs.iter().map(input).collect();
    [bytes(1, kind), outputs.concat(), inputs.concat()].concat()
}

/// An input that is the result of another operation.
fn named(key: &str, name: &str) -> Vec<u8> {
    bytes(2, [bytes(1, key), bytes(2, bytes(1, bytes(1, name)))].concat())
}

/// A program of one operation.
fn one(kind: &str, inputs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    program(&[operation(kind, &["w"], inputs)])
}

/// A constant `w` alone.
fn plain(value: Vec<u8>) -> Vec<u8> {
    program(&[constant("w", value)])
}

#[test]
fn values() {
    let mut trial = Trial::new();
    let two = || raw(F16, &[2], &[0; 4]);
    let packed: Vec<u8> = (0..31).flat_map(|i| varint(1 << i)).collect();
    trial.fine(vec![
        ("a constant", plain(two())),
        ("64 dimensions", plain(raw(I8, &[1; 64], &[1]))),
        ("numbers of all sizes", plain(value(I32, &[31], 2, &packed))),
        ("a number below zero", plain(value(I32, &[1], 2, &varint(-5i64 as u64)))),
        ("floats", plain(value(F32, &[2], 1, &[0; 8]))),
        ("text", program(&[constant("t", value(2, &[], 4, b"a")), constant("w", two())])),
        ("no constants", program(&[])),
        ("an input of another operation", one("linear", &[("weight", two())])),
    ]);
    let outside = |at| plain(blob(F16, &[2], "@model_path/weights/weight.bin", at));
    // In memory nothing is beside a file; where it has a path, the other is missing.
    let (kind, words) = match Monitor::LIMITS_TIME {
        true => (Unsupported, &["give the path"]),
        false => (Parse, &["is missing"]),
    };
    trial.refused(vec![
        ("65 dimensions", plain(raw(I8, &[1; 65], &[1])), Limit, &["dimensions"]),
        ("sizes that overflow", plain(raw(I8, &[1 << 40, 1 << 40], &[1])), Parse, &["overflows"]),
        ("zero and 2^120", plain(raw(I8, &[1 << 60, 1 << 60, 0], &[])), Parse, &["`w`"]),
        ("2^50 elements", plain(raw(I8, &[1 << 50], &[1])), Parse, &["`w`", "1 bytes"]),
        ("2^63 elements of two bytes", plain(raw(F16, &[1 << 63], &[])), Parse, &["overflows"]),
        ("an unknown type", plain(raw(99, &[1], &[1])), Parse, &["99"]),
        ("fewer numbers", plain(value(I32, &[2], 2, &[1])), Parse, &["4 bytes of numbers"]),
        ("a number that is too large", plain(value(BOOL, &[1], 3, &varint(300))), Parse, &["fit"]),
        ("a number that does not end", plain(value(I32, &[1], 2, &[0x80])), Parse, &["number"]),
        ("INT4 as numbers", plain(value(25, &[2], 2, &[1])), Parse, &["numbers of a field"]),
        ("two of a name", program(&[constant("w", two()), constant("w", two())]), Parse, &["`w`"]),
        ("no name", program(&[constant("", two())]), Parse, &["no name"]),
        ("elements of three bits", plain(raw(U3, &[8], &[0; 3])), Unsupported, &["UINT3"]),
        ("data and no other file", outside(64), kind, words),
    ]);
    let many: Vec<Vec<u8>> = (0..100_000).map(|_| constant("w", vec![])).collect();
    trial.fine(vec![("100 000 constants without values", program(&many))]);
    let many: Vec<Vec<u8>> = (0..60_000)
        .map(|i| constant(&i.to_string(), raw(I8, &[], &[1])))
        .collect();
    trial.refused(vec![("60 000 constants", program(&many), Limit, &["MAX_TABLE_BYTES"])]);
    trial.end();
}

#[test]
fn compressed() {
    let mut trial = Trial::new();
    let scalar = |n: u64| value(I32, &[], 2, &varint(n));
    let dims = |dims: &[u32]| {
        let elements: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        raw(U32, &[dims.len() as u64], &elements)
    };
    let half = |n: u64| raw(F16, &[n], &vec![0; 2 * n as usize]);
    let affine = |scale, zero, axis| {
        one(
            "constexpr_affine_dequantize",
            &[
                ("quantized_data", raw(I8, &[2, 3], &[1; 6])),
                ("scale", scale),
                ("zero_point", zero),
                ("axis", scalar(axis)),
            ],
        )
    };
    let blocks =
        |data, scale| one("constexpr_blockwise_shift_scale", &[("data", data), ("scale", scale)]);
    let table16 = |indices: &[u8], entries, shape: &[u32]| {
        one(
            "constexpr_lut_to_dense",
            &[
                ("indices", raw(U8, &[indices.len() as u64], indices)),
                ("lut", half(entries)),
                ("shape", dims(shape)),
            ],
        )
    };
    let table = |lut: &[u64], axis| {
        let n: u64 = lut.iter().product();
        let lut = raw(F16, lut, &vec![0; 2 * n as usize]);
        let codes = raw(U2, &[2, 4], &[0; 2]);
        one(
            "constexpr_lut_to_dense",
            &[("indices", codes), ("lut", lut), ("vector_axis", scalar(axis))],
        )
    };
    let sparse = |mask: &[u8], n| {
        one(
            "constexpr_sparse_to_dense",
            &[("nonzero_data", half(n)), ("mask", raw(U1, &[3, 4], mask))],
        )
    };
    trial.fine(vec![
        ("a scale for each row", affine(half(2), raw(I8, &[2], &[1; 2]), 0)),
        ("blocks", blocks(raw(I8, &[4, 6], &[1; 24]), raw(F16, &[2, 3], &[0; 12]))),
        ("codes of a bit", table16(&[3], 2, &[1, 3])),
        ("vectors", table(&[1, 2, 4, 3], 0)),
        ("a mask", sparse(&[0b101, 0b1], 3)),
    ]);
    let shared = |mask: Vec<u8>| {
        let mask = raw(U1, &[mask.len() as u64 * 8], &mask);
        let part = [named("mask", "m"), named("nonzero_data", "v")].concat();
        let each = |i: u32| {
            [operation("constexpr_sparse_to_dense", &[&i.to_string()], &[]), part.clone()].concat()
        };
        let parts = [constant("m", mask), constant("v", half(0))].into_iter();
        program(&parts.chain((0..3000).map(each)).collect::<Vec<_>>())
    };
    trial.fine(vec![("3000 of a mask", shared(vec![0; 8]))]);
    trial.refused(vec![(
        "3000 of a long mask",
        shared(vec![0; 1 << 16]),
        Limit,
        &["COREML_MAX_WORK"],
    )]);
    let axes: [u64; 4] = [2, 1 << 31, u64::MAX, -3i64 as u64];
    for axis in axes {
        let made = affine(half(2), raw(I8, &[2], &[1; 2]), axis);
        trial.refused(vec![(&format!("axis {axis}"), made, Parse, &["`w`"])]);
    }
    let unknown = operation("constexpr_of_tomorrow", &["w"], &[("data", half(2))]);
    let of_none = [operation("constexpr_cast", &["w"], &[]), named("source_val", "w")].concat();
    let lut = |groups| {
        let zeros = vec![0; 2 * 4 * groups as usize];
        one(
            "constexpr_lut_to_dense",
            &[
                ("indices", raw(U2, &[2, 4], &[0; 2])),
                ("lut", raw(F16, &[1, groups, 4, 1], &zeros)),
            ],
        )
    };
    trial.refused(vec![
        ("three scales for two rows", affine(half(3), scalar(0), 0), Parse, &["scale", "`w`"]),
        ("blocks that do not divide", blocks(raw(I8, &[4], &[1; 4]), half(3)), Parse, &["`w`"]),
        ("no blocks", blocks(raw(I8, &[4], &[1; 4]), half(0)), Parse, &["`w`"]),
        ("scales of another rank", blocks(raw(I8, &[4, 1], &[1; 4]), half(4)), Parse, &["fit"]),
        ("codes that are F16", blocks(half(4), half(1)), Unsupported, &["F16"]),
        ("three entries", table16(&[3], 3, &[1]), Parse, &["3 entries"]),
        ("512 entries", table16(&[3], 512, &[1]), Parse, &["512 entries"]),
        ("more codes than bytes", table16(&[3], 2, &[9]), Parse, &["`w`"]),
        ("2^60 codes", table16(&[3], 2, &[1 << 30, 1 << 30]), Parse, &["`w`"]),
        ("no dimensions", table16(&[3], 2, &[]), Parse, &["`w`"]),
        ("tables for more than there is", lut(8), Parse, &["does not fit"]),
        ("no tables", lut(0), Parse, &["does not fit"]),
        ("vectors along no axis", table(&[1, 1, 4, 2], 2), Parse, &["vector_axis"]),
        ("vectors of 300", table(&[1, 1, 4, 300], 0), Limit, &["values of a code"]),
        ("more bits than values", sparse(&[0b111, 0b1], 3), Parse, &["4 elements"]),
        ("bits behind the end", sparse(&[0, 0b1_0001], 2), Parse, &["behind the last"]),
        ("a shorter mask", sparse(&[0], 0), Parse, &["1 bytes"]),
        ("an unknown operation", program(&[unknown]), Unsupported, &["of_tomorrow"]),
        ("made of itself", program(&[of_none]), Parse, &["no constant before"]),
        ("no data", one("constexpr_cast", &[]), Parse, &["source_val"]),
    ]);
    trial.end();
}

#[test]
fn models() {
    let mut trial = Trial::new();
    let layer = |name: &str, kind: u64, params: &[u8]| {
        bytes(1, [bytes(1, name), bytes(kind, params)].concat())
    };
    let fc = |sizes: [u64; 2], weights: &[u8]| {
        [number(1, sizes[0]), number(2, sizes[1]), bytes(20, weights)].concat()
    };
    let network = |params: &[u8]| model(500, layer("fc", 140, params));
    let raw_codes = |bits, more: &[u8]| {
        [bytes(30, [7; 3]), bytes(40, [number(1, bits), more.to_vec()].concat())].concat()
    };
    let linear =
        |n: usize| bytes(101, [bytes(1, vec![0; 4 * n]), bytes(2, vec![0; 4 * n])].concat());
    let whole = network(&fc([3, 2], &bytes(1, [0; 24])));
    trial.truncations("a network", &whole);
    trial.fine(vec![
        ("a layer", whole),
        ("halves", network(&fc([3, 2], &bytes(2, [0; 12])))),
        ("codes", network(&fc([4, 2], &raw_codes(3, &linear(2))))),
        ("no weights", network(&fc([3, 2], &[]))),
        ("another kind of layer", model(500, layer("pool", 120, &[]))),
    ]);
    let mut deep = Vec::new();
    for _ in 0..60 {
        deep = layer("l", 615, &bytes(4, deep));
    }
    let mut pipelines = model(500, []);
    for _ in 0..20 {
        pipelines = model(202, bytes(1, pipelines));
    }
    let mut blocks = Vec::new();
    for _ in 0..60 {
        blocks = [bytes(1, "cond"), bytes(4, bytes(3, blocks))].concat();
    }
    trial.refused(vec![
        ("a shorter matrix", network(&fc([3, 2], &bytes(1, [0; 20]))), Parse, &["fc.weights"]),
        ("2^80 values", network(&fc([1 << 40; 2], &bytes(1, [0; 4]))), Parse, &["overflows"]),
        ("nine bits", network(&fc([4, 2], &raw_codes(9, &linear(2)))), Parse, &["9 bits"]),
        ("other scales", network(&fc([4, 2], &raw_codes(3, &linear(3)))), Parse, &["fit"]),
        ("no scales", network(&fc([4, 2], &raw_codes(3, &[]))), Parse, &["neither"]),
        (
            "a table that is too short",
            network(&fc([4, 2], &raw_codes(3, &bytes(102, bytes(1, [0; 12]))))),
            Parse,
            &["neither"],
        ),
        ("INT8", network(&fc([3, 1], &bytes(31, [1; 3]))), Unsupported, &["int8RawValue"]),
        ("50 000 numbers", network(&number(7, 1).repeat(50_000)), Limit, &["numbers of a layer"]),
        ("loops inside of each other", model(500, deep), Limit, &["networks inside"]),
        ("pipelines inside of each other", pipelines, Limit, &["models inside"]),
        ("blocks inside of each other", program(&[blocks]), Limit, &["blocks inside"]),
        ("a tree", model(302, []), Unsupported, &["treeEnsembleRegressor"]),
        ("no model", model(9999, []), Parse, &["no model"]),
        (
            "a long name",
            program(&[constant(&"n".repeat(5000), raw(I8, &[], &[1]))]),
            Limit,
            &["name"],
        ),
    ]);
    trial.end();
}

/// Models with their weights, of which either file is changed.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let cases =
        ["affine", "tables16", "blocks", "tables18", "sparse", "scaled_tables", "network_linear_3"];
    let cases = cases.map(|case| {
        let case = data().join("coreml_quantized").join(case);
        let weights = std::fs::read(case.join("weights/weight.bin")).unwrap_or(vec![0; 8]);
        [std::fs::read(case.join("model.mlmodel")).unwrap(), weights]
    });
    let (mut random, mut good) = (Random(29), 0);
    let place = tempdir().unwrap();
    let [spec, weights] = ["m.mlmodel", "weights/weight.bin"].map(|name| place.path().join(name));
    std::fs::create_dir(weights.parent().unwrap()).unwrap();
    let count = edit_count([150, 1000, 4000]);
    for i in 0..count {
        let [mut message, mut blobs] = cases[i % cases.len()].clone();
        match i % 4 {
            0 => blobs.truncate((random.next() >> 20) as usize % blobs.len()),
            1 if blobs.len() > 8 => mutate(&mut blobs, &mut random),
            _ => mutate(&mut message, &mut random),
        }
        std::fs::write(&spec, &message).unwrap();
        std::fs::write(&weights, &blobs).unwrap();
        let result = trial.measure("an edit", message.len() + blobs.len(), || {
            anamnesis::parse(&spec).and_then(|model| recover_everything(&model, None))
        });
        good += usize::from(matches!(result, Some(Ok(_))));
    }
    trial.count_edits(count, good, 20);
    trial.end();
}
