//! ONNX models that are malformed or hostile. `tests/data/onnx` has more that are refused.

use super::message::{bytes, number, varint};
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

/// A model whose graph is last, so that it ends with the file.
fn model(graph: &[Vec<u8>]) -> Vec<u8> {
    [number(1, 8), bytes(2, "test"), bytes(7, graph.concat())].concat()
}

/// A tensor of a type and dimensions with data in a field.
fn tensor(name: &str, data_type: u64, dims: &[u64], data: &[u8]) -> Vec<u8> {
    let dims = dims.iter().flat_map(|&dim| number(1, dim)).collect();
    let parts: [Vec<u8>; 4] = [dims, number(2, data_type), bytes(8, name), data.to_vec()];
    parts.concat()
}

/// An initializer with raw data.
fn raw(name: &str, data_type: u64, dims: &[u64], data: &[u8]) -> Vec<u8> {
    bytes(5, tensor(name, data_type, dims, &bytes(9, data)))
}

fn node(op: &str, inputs: &[&str], rest: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|name| bytes(1, name)).collect();
    bytes(1, [inputs.concat(), bytes(2, "out"), bytes(4, op), rest.concat()].concat())
}

fn graph_attribute(graph: &[u8]) -> Vec<u8> {
    bytes(5, [bytes(1, "body"), bytes(6, graph)].concat())
}

/// Codes with a scale, and the node that decodes them.
fn quantized(codes: Vec<u8>, scale: Vec<u8>, attributes: &[(&str, u64)]) -> Vec<u8> {
    let attributes = attributes
        .iter()
        .map(|&(name, n)| bytes(5, [bytes(1, name), number(3, n)].concat()));
    let attributes: Vec<Vec<u8>> = attributes.collect();
    model(&[node("DequantizeLinear", &["w", "s"], &attributes), codes, scale])
}

const ONE: &[u8] = &[0, 0, 128, 63];

#[test]
fn tensors() {
    let mut trial = Trial::new();
    let w = || raw("w", 1, &[1], ONE);
    trial.fine(vec![
        ("a tensor", model(&[w()])),
        ("64 dimensions", model(&[raw("w", 1, &[1; 64], ONE)])),
        ("numbers of all sizes", {
            let packed: Vec<u8> = (0..63).flat_map(|i| varint(1 << i)).collect();
            model(&[bytes(5, tensor("w", 7, &[63], &bytes(7, packed)))])
        }),
        ("a node of an unknown operator", model(&[w(), node("New", &["w"], &[])])),
    ]);
    let one = |what: Vec<u8>| model(&[bytes(5, what)]);
    let varints =
        |data_type, n, field, data: &[u8]| one(tensor("w", data_type, &[n], &bytes(field, data)));
    trial.refused(vec![
        ("65 dimensions", model(&[raw("w", 1, &[1; 65], ONE)]), Limit, &["dimensions"]),
        ("a dimension of -1", model(&[raw("w", 1, &[u64::MAX], ONE)]), Parse, &["negative"]),
        (
            "dims that overflow",
            model(&[raw("w", 1, &[1 << 40, 1 << 40], ONE)]),
            Parse,
            &["overflow"],
        ),
        (
            "zero and 2^120",
            model(&[raw("w", 1, &[0, 1 << 60, 1 << 60], &[])]),
            Parse,
            &["overflow"],
        ),
        ("2^50 elements", model(&[raw("w", 1, &[1 << 50], ONE)]), Parse, &["4 bytes of data"]),
        ("a number that does not end", varints(6, 1, 5, &[0x80]), Parse, &["within a number"]),
        ("a number of 11 bytes", varints(6, 1, 5, &[0x80; 11]), Parse, &["ten bytes"]),
        ("a byte of 300", varints(2, 1, 5, &varint(300)), Parse, &["does not fit"]),
        ("fewer numbers", varints(6, 2, 5, &[1]), Parse, &["4 bytes of data"]),
        ("numbers in another field", varints(7, 1, 5, &[1]), Parse, &["0 bytes of data"]),
        ("2^62 elements without data", one(tensor("w", 2, &[1 << 57], &[])), Parse, &["0 bytes"]),
        ("two of a name", model(&[w(), w()]), Parse, &["two tensors", "`w`"]),
        ("an element type", model(&[raw("w", 99, &[1], &[1])]), Unsupported, &["element type 99"]),
    ]);
    trial.end();
}

#[test]
fn messages() {
    let mut trial = Trial::new();
    let whole = model(&[
        node("If", &["c"], &[graph_attribute(&raw("a", 1, &[1], ONE))]),
        bytes(5, tensor("b", 7, &[3], &bytes(7, [1, 2, 3]))),
        raw("w", 1, &[2, 2], &[7; 16]),
    ]);
    trial.truncations("a model", &whole);
    trial.mutations(
        &[
            whole.clone(),
            quantized(raw("w", 3, &[2, 2], &[1, 2, 3, 4]), raw("s", 1, &[1], ONE), &[]),
        ],
        11,
    );
    let mut deep = Vec::new();
    for _ in 0..100_000 {
        deep = node("If", &[], &[graph_attribute(&deep)]);
        if deep.len() > 1 << 12 {
            break;
        }
    }
    let lie = |n: u64| {
        [number(1, 8), bytes(2, "x"), varint(7 << 3 | 2), varint(n), bytes(2, "g")].concat()
    };
    trial.refused(vec![
        ("graphs inside of each other", model(&[deep]), Limit, &["graphs inside"]),
        ("a graph longer than the file", lie(1000), Parse, &["within a field"]),
        ("a graph of 2^64 bytes", lie(u64::MAX), Parse, &["within a field"]),
        ("two graphs", [whole.clone(), bytes(7, bytes(2, "g"))].concat(), Parse, &["two graphs"]),
        ("a field of number 0", [whole.clone(), vec![0, 0]].concat(), Parse, &["number 0"]),
        ("a name that is no UTF-8", model(&[bytes(5, bytes(8, [0xff]))]), Parse, &["UTF-8"]),
        ("a name of 2 MiB", model(&[raw(&"x".repeat(2 << 20), 1, &[1], ONE)]), Limit, &["name"]),
    ]);
    trial.end();
}

/// Short files that ask for much: names that are repeated, and tables.
#[test]
fn amplification() {
    let mut trial = Trial::new();
    let long = "n".repeat(100_000);
    let graphs: Vec<u8> = (0..100_000).flat_map(|_| bytes(11, [])).collect();
    let many = |name: &str| {
        let attribute = bytes(5, [bytes(1, "bodies"), graphs.clone()].concat());
        model(&[bytes(1, [bytes(3, name), attribute].concat())])
    };
    let twice = bytes(5, [bytes(1, "value_int"), number(3, 1)].concat());
    let empty: Vec<Vec<u8>> = (0..100_000)
        .map(|i: u32| bytes(5, tensor(&i.to_string(), 1, &[0], &[])))
        .collect();
    let indices = bytes(2, tensor("", 7, &[1], &bytes(7, [1])));
    let sparse = |dim: u64| {
        let values = bytes(1, tensor("s", 1, &[1], &bytes(9, ONE)));
        model(&[bytes(15, [values, indices.clone(), number(3, dim)].concat())])
    };
    trial.refused(vec![
        ("graphs of a node with a long name", many(&long), Limit, &["name"]),
        ("100 000 graphs", many("n"), Limit, &["MAX_TABLE_BYTES"]),
        (
            "two values of a constant",
            model(&[node("Constant", &[], &[twice.clone(), twice])]),
            Parse,
            &["two values"],
        ),
        ("100 000 empty tensors", model(&empty), Limit, &["MAX_TABLE_BYTES"]),
        ("a sparse tensor of 2^40", sparse(1 << 40), Limit, &["sparse"]),
        ("a sparse tensor of 2^60", sparse(1 << 60), Parse, &["overflow"]),
    ]);
    trial.fine(vec![("a sparse tensor of 2^16", sparse(1 << 16))]);
    trial.end();
}

#[test]
fn quantized_weights() {
    let mut trial = Trial::new();
    let w = |dims: &[u64]| raw("w", 3, dims, &vec![1; dims.iter().product::<u64>() as usize]);
    let s = |dims: &[u64]| raw("s", 1, dims, &ONE.repeat(dims.iter().product::<u64>() as usize));
    let max = i64::MAX as u64;
    trial.fine(vec![
        ("one scale", quantized(w(&[2, 3]), s(&[]), &[])),
        ("a scale a column", quantized(w(&[2, 3]), s(&[3]), &[])),
        ("no values", quantized(w(&[0, 3]), s(&[]), &[])),
        ("a block of any size", quantized(w(&[2, 3]), s(&[2, 1]), &[("block_size", max)])),
    ]);
    let cast_to = |to: u64| bytes(5, [bytes(1, "to"), number(3, to)].concat());
    let of_node =
        |op: &str, attributes: &[Vec<u8>]| model(&[node(op, &["w"], attributes), w(&[2, 3])]);
    let moved = |scales: &[u64]| {
        let turned = bytes(1, [bytes(1, "w"), bytes(2, "t"), bytes(4, "Transpose")].concat());
        let linear = node("DequantizeLinear", &["t", "s"], &[]);
        model(&[turned, linear, w(&[2, 3]), s(scales)])
    };
    trial.fine(vec![
        ("codes that are cast to truth values", of_node("Cast", &[cast_to(9)])),
        ("codes that are moved, with one scale", moved(&[])),
    ]);
    let beside = raw("v", 3, &[2, 3], &[1; 6]);
    let beside = model(&[node("DequantizeLinear", &["w", "s"], &[]), w(&[2, 3]), s(&[]), beside]);
    let fit: &[&str] = &["does not fit"];
    trial.refused(vec![
        ("a scale too many", quantized(w(&[2, 3]), s(&[4]), &[]), Parse, fit),
        ("an axis that is not there", quantized(w(&[2, 3]), s(&[3]), &[("axis", 2)]), Parse, fit),
        ("an axis of 2^63", quantized(w(&[2, 3]), s(&[3]), &[("axis", 1 << 63)]), Parse, fit),
        ("blocks of -1", quantized(w(&[2, 3]), s(&[3]), &[("block_size", u64::MAX)]), Parse, fit),
        (
            "blocks of 2 with a scale for 3",
            quantized(w(&[2, 6]), s(&[2, 2]), &[("block_size", 2)]),
            Parse,
            fit,
        ),
        ("a scale of integers", quantized(w(&[2]), raw("s", 3, &[1], &[1]), &[]), Parse, &["`s`"]),
        (
            "no scale",
            model(&[node("DequantizeLinear", &["w", "s"], &[]), w(&[2])]),
            Unsupported,
            &["another operator"],
        ),
        ("codes that are cast", of_node("Cast", &[cast_to(1)]), Unsupported, &["Cast"]),
        ("codes in integers", of_node("BitwiseAnd", &[]), Unsupported, &["BitwiseAnd"]),
        ("codes that are moved", moved(&[2]), Unsupported, &["another order"]),
        ("codes beside those", beside, Unsupported, &["`v`", "no operator"]),
        (
            "an unknown operator",
            model(&[
                bytes(1, [bytes(1, "w"), bytes(4, "Strange"), bytes(7, "com.example")].concat()),
                w(&[2]),
            ]),
            Unsupported,
            &["Strange"],
        ),
    ]);
    trial.end();
}
