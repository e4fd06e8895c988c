//! Models of OpenVINO that are malformed or hostile.

use super::{edit_count, mutate, recover_everything};
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::{Random, data, tempdir};
use crate::monitor::Monitor;
use crate::trials::Trial;

/// A model of layers and edges.
fn net(layers: &str, edges: &str) -> Vec<u8> {
    format!("<?xml version=\"1.0\"?>\n<net name=\"n\" version=\"11\"><layers>{layers}</layers><edges>{edges}</edges></net>\n").into_bytes()
}

/// A constant without data, which needs no other file.
fn empty(id: u32, name: &str) -> String {
    constant(id, name, "f32", "0, 2", 0, 0)
}

fn constant(id: u32, name: &str, kind: &str, shape: &str, offset: u64, size: u64) -> String {
    format!(
        "<layer id=\"{id}\" name=\"{name}\" type=\"Const\"><data element_type=\"{kind}\" shape=\"{shape}\" offset=\"{offset}\" size=\"{size}\"/><output><port id=\"0\"><dim>0</dim></port></output></layer>"
    )
}

#[test]
fn graphs() {
    let mut trial = Trial::new();
    let whole = net(&[empty(0, "a"), empty(1, "b &lt;&#65;")].concat(), "");
    trial.fine(vec![("two constants", whole.clone()), ("no constants", net("", ""))]);
    let version = |n: u32| format!("<net name=\"n\" version=\"{n}\"></net>").into_bytes();
    let layer = |attributes: &str| net(&format!("<layer {attributes}/>"), "");
    let deep = "<layer id=\"1\" name=\"l\" type=\"Loop\"><body><layers>".repeat(60);
    trial.refused(vec![
        ("version 7", version(7), Unsupported, &["version 7"]),
        ("no version", b"<net name=\"n\"></net>".to_vec(), Parse, &["version"]),
        ("two numbers", net(&[empty(1, "a"), empty(1, "b")].concat(), ""), Parse, &["number 1"]),
        ("no number", layer("name=\"a\""), Parse, &["number"]),
        ("a number of 2^40", layer("id=\"1099511627776\""), Parse, &["number"]),
        (
            "a long name",
            layer(&format!("id=\"1\" name=\"{}\"", "x".repeat(5000))),
            Limit,
            &["name"],
        ),
        ("deep elements", net(&deep, ""), Limit, &["inside of each other"]),
        ("an edge without ends", net("", "<edge from-layer=\"1\"/>"), Parse, &["edge"]),
        (
            "two edges to a port",
            net(
                "",
                &"<edge from-layer=\"1\" from-port=\"0\" to-layer=\"2\" to-port=\"0\"/>".repeat(2),
            ),
            Parse,
            &["two edges"],
        ),
        (
            "a document type",
            b"<!DOCTYPE net><net name=\"n\" version=\"11\"/>".to_vec(),
            Unsupported,
            &[],
        ),
        ("two of an attribute", layer("id=\"1\" id=\"2\""), Parse, &["twice"]),
    ]);
    let layers: String = (0..100_000)
        .map(|id| format!("<layer id=\"{id}\" type=\"Const\"><data element_type=\"f32\" shape=\"0\" offset=\"0\" size=\"0\"/></layer>"))
        .collect();
    let edges: String = (0..100_000)
        .map(|id| format!("<edge from-layer=\"{id}\" to-layer=\"{id}\" to-port=\"0\"/>"))
        .collect();
    trial.fine(vec![("100 000 edges", net("", &edges))]);
    trial.refused(vec![("100 000 layers", net(&layers, ""), Limit, &["MAX_TABLE_BYTES"])]);
    trial.end();
}

#[test]
fn constants() {
    let mut trial = Trial::new();
    let one = |kind, shape, size| net(&constant(0, "w", kind, shape, 0, size), "");
    trial.fine(vec![("no values", one("i8", "0, 3", 0))]);
    // In memory nothing is beside a file; where it has a path, the other is missing.
    let (kind, words) = match Monitor::LIMITS_TIME {
        true => (Unsupported, &["give the path"]),
        false => (Parse, &["is missing"]),
    };
    trial.refused(vec![
        ("data and no other file", one("f32", "2", 8), kind, words),
        ("a size too large", one("f32", "0, 2", 4), kind, words),
        (
            "no shape",
            net(
                "<layer id=\"0\" name=\"w\" type=\"Const\"><data element_type=\"f32\"/></layer>",
                "",
            ),
            Parse,
            &["lacks"],
        ),
        ("a negative dimension", one("f32", "-1", 0), Parse, &["lacks"]),
        (
            "a size that overflows",
            one("f32", "0, 4294967295, 4294967295, 4294967295", 0),
            Parse,
            &["overflows"],
        ),
        ("65 dimensions", one("f32", &["0"; 65].join(","), 0), Parse, &["lacks"]),
        ("an element type", one("f5", "0", 0), Unsupported, &["f5"]),
    ]);
    trial.end();
}

/// Models with their data, of which either file is changed.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let cases = ["u4_groups", "nf4_down", "nncf_cb4", "i8_columns", "beside", "u4_u8_zero"];
    let cases = cases.map(|case| {
        let case = data().join("openvino_quantized").join(case);
        ["model.xml", "model.bin"].map(|file| std::fs::read(case.join(file)).unwrap())
    });
    let numbers: [&str; 8] =
        ["0", "1", "7", "65535", "4294967295", "18446744073709551615", "-1", "x"];
    let (mut random, mut good) = (Random(23), 0);
    let place = tempdir().unwrap();
    let [graph, weights] = ["m.xml", "m.bin"].map(|name| place.path().join(name));
    let count = edit_count([150, 1000, 4000]);
    for i in 0..count {
        let [mut xml, mut bin] = cases[i % cases.len()].clone();
        let at = (random.next() >> 20) as usize % xml.len();
        match i % 4 {
            0 => mutate(&mut xml, &mut random),
            1 => bin.truncate((random.next() >> 20) as usize % bin.len()),
            // The number behind this place.
            _ => {
                let digits = |b: &u8| b.is_ascii_digit();
                let start = xml[at..].iter().position(digits).map_or(at, |n| at + n);
                let end = xml[start..]
                    .iter()
                    .position(|b| !digits(b))
                    .map_or(start, |n| start + n);
                let number = numbers[(random.next() >> 20) as usize % numbers.len()];
                xml.splice(start..end, number.bytes());
            }
        }
        std::fs::write(&graph, &xml).unwrap();
        std::fs::write(&weights, &bin).unwrap();
        let result = trial.measure("an edit", xml.len() + bin.len(), || {
            anamnesis::parse(&graph).and_then(|model| recover_everything(&model, None))
        });
        good += usize::from(matches!(result, Some(Ok(_))));
    }
    trial.count_edits(count, good, 20);
    trial.end();
}
