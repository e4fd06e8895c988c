//! Models of MLC that are malformed or hostile.

use std::path::Path;

use super::{edit_count, mutate, recover_everything};
use crate::common::verdict::{Kind, Limit, Parse, Unsupported, verdict};
use crate::common::{Random, data, tempdir};
use crate::monitor::Monitor;
use crate::trials::Trial;

/// A record of a tensor.
fn record(name: &str, dtype: &str, shape: &str, [offset, nbytes]: [u64; 2]) -> String {
    format!(
        r#"{{"name":"{name}","shape":[{shape}],"dtype":"{dtype}","format":"f32-to-bf16","nbytes":{nbytes},"byteOffset":{offset}}}"#
    )
}

/// A list of tensors in `path`, which has `nbytes` bytes.
fn list_of(path: &str, nbytes: u64, records: &[String]) -> String {
    let records = records.join(",");
    format!(
        r#"{{"metadata":{{"ParamSize":1}},"records":[{{"dataPath":"{path}","format":"raw-shard","nbytes":{nbytes},"records":[{records}]}}]}}"#
    )
}

const DATA: &str = "params_shard_0.bin";

/// A list of tensors in a file of 1280 bytes.
fn list(records: &[String]) -> String {
    list_of(DATA, 1280, records)
}

/// Codes of four rows of two groups, and their scales.
fn layer() -> [String; 2] {
    [
        record("l.q_weight", "uint32", "4, 8", [0, 128]),
        record("l.q_scale", "float16", "4, 2", [128, 16]),
    ]
}

const CONFIG: &str = r#"{"quantization":"q4f16_1","model_config":{"hidden_size":48}}"#;

/// What is wrong, the list, the config, the kind of the error, and words of its message.
type Directory<'a> = (&'a str, String, &'a str, Kind, &'a [&'a str]);

/// Writes a model of this list and config, and a file of data.
fn write(place: &Path, list: &[u8], config: &[u8], bytes: &[u8]) {
    std::fs::write(place.join("tensor-cache.json"), list).unwrap();
    std::fs::write(place.join("mlc-chat-config.json"), config).unwrap();
    std::fs::write(place.join(DATA), bytes).unwrap();
}

fn recover(trial: &mut Trial, what: &str, place: &Path) -> Option<anamnesis::Result<Vec<u8>>> {
    trial.measure(what, 4096, || {
        anamnesis::parse(place).and_then(|model| recover_everything(&model, None))
    })
}

#[test]
fn directories() {
    let mut trial = Trial::new();
    let place = tempdir().unwrap();
    let [codes, scales] = layer();
    let plain = |name: &str, range| record(name, "float32", "4", range);
    let fine = [
        ("a layer", list(&layer())),
        ("floats that are stored in half", list(&[plain("a", [8, 8])])),
        ("nothing", list(&[record("a", "int8", "0, 3", [0, 0])])),
        ("a number", list(&[record("a", "int64", "", [8, 8])])),
        ("tensors that share their bytes", list(&[plain("a", [0, 8]), plain("b", [0, 8])])),
    ];
    for (what, list) in fine {
        write(place.path(), list.as_bytes(), CONFIG.as_bytes(), &[7; 1280]);
        let error = recover(&mut trial, what, place.path()).and_then(Result::err);
        error.into_iter().for_each(|error| trial.fail(what, error));
    }
    let with = |more: &[String]| list(&[&layer()[..], more].concat());
    let of =
        |quantization: &str| format!(r#"{{"quantization":"{quantization}","model_config":{{}}}}"#);
    let (other, three) = (of("q5k_m"), of("q3f16_1"));
    let sizes = r#"{"quantization":"q4f16_1","model_config":{"hidden_size":48,"n_inner":50}}"#;
    let words = |shape, nbytes| record("l.q_weight", "uint32", shape, [0, nbytes]);
    let rows: Vec<Directory<'_>> = vec![
        ("no list", "{\"ParamSize\":1}".to_owned(), CONFIG, Parse, &["records"]),
        ("no JSON", "{\"ParamSize\":".to_owned(), CONFIG, Parse, &["malformed"]),
        ("no tensors", list(&[]), CONFIG, Parse, &["no tensors"]),
        ("another length", list_of(DATA, 1279, &layer()), CONFIG, Parse, &["1280 bytes", "1279"]),
        ("no file", list_of("x.bin", 1280, &layer()), CONFIG, Parse, &["x.bin", "missing"]),
        ("a file above", list_of("../x", 1280, &layer()), CONFIG, Parse, &["../x"]),
        ("an absolute path", list_of("/etc/passwd", 1, &layer()), CONFIG, Parse, &["/etc/passwd"]),
        ("two of a name", with(&[plain("l.q_scale", [200, 8])]), CONFIG, Parse, &["two tensors"]),
        ("an overlap", with(&[plain("a", [120, 8])]), CONFIG, Parse, &["`a`", "overlaps"]),
        ("bytes too few", with(&[plain("a", [200, 7])]), CONFIG, Parse, &["`a`", "7 bytes"]),
        ("bytes of F32", with(&[plain("a", [200, 16])]), CONFIG, Parse, &["`a`", "16 bytes"]),
        ("behind the file", with(&[plain("a", [1273, 8])]), CONFIG, Parse, &["`a`", "1273"]),
        ("an offset of 2^64", with(&[plain("a", [u64::MAX, 8])]), CONFIG, Parse, &["`a`"]),
        (
            "a size that overflows",
            with(&[record("a", "int8", "4294967296, 4294967296", [0, 0])]),
            CONFIG,
            Parse,
            &["`a`"],
        ),
        ("a negative size", with(&[record("a", "int8", "-1", [0, 0])]), CONFIG, Parse, &["list"]),
        (
            "65 dimensions",
            with(&[record("a", "int8", &["1"; 65].join(","), [0, 1])]),
            CONFIG,
            Limit,
            &["dimensions"],
        ),
        ("a dtype", with(&[record("a", "int4", "2", [0, 1])]), CONFIG, Unsupported, &["int4"]),
        (
            "a format",
            list(&layer()).replace("f32-to-bf16", "zip"),
            CONFIG,
            Unsupported,
            &["l.q_weight", "zip"],
        ),
        (
            "a format of the file",
            list(&layer()).replace("raw-shard", "npz"),
            CONFIG,
            Unsupported,
            &["npz"],
        ),
        (
            "no scales",
            list(std::slice::from_ref(&codes)),
            CONFIG,
            Parse,
            &["`l.q_weight`", "l.q_scale"],
        ),
        (
            "no codes",
            list(std::slice::from_ref(&scales)),
            CONFIG,
            Parse,
            &["`l.q_scale`", "l.q_weight"],
        ),
        ("no config", list(&layer()), "{}", Unsupported, &["`l.q_weight`", "quantization"]),
        ("another quantization", list(&layer()), &other, Unsupported, &["q5k_m"]),
        ("sizes that both fit", list(&layer()), sizes, Unsupported, &["48", "50"]),
        ("no size that fits", list(&layer()), &three, Unsupported, &["padded to 80"]),
        (
            "half a group",
            list(&[words("4, 7", 112), scales.clone()]),
            CONFIG,
            Parse,
            &["`l.q_weight`", "do not fit"],
        ),
        (
            "other rows",
            list(&[words("3, 8", 96), scales.clone()]),
            CONFIG,
            Parse,
            &["`l.q_weight`", "do not fit"],
        ),
        (
            "codes of CUTLASS",
            list(&[record("l.q_weight", "int8", "4, 8", [0, 32]), scales.clone()]),
            CONFIG,
            Unsupported,
            &["q4f16_ft"],
        ),
        (
            "a part for a GPU",
            list(&[record("l.q_weight_shard-0", "uint32", "4, 8", [0, 128])]),
            CONFIG,
            Unsupported,
            &["several GPUs"],
        ),
        (
            "codes without a name",
            list(&[record("param_3", "uint32", "4, 8", [0, 128])]),
            CONFIG,
            Unsupported,
            &["param_3"],
        ),
    ];
    for (what, list, config, kind, words) in rows {
        write(place.path(), list.as_bytes(), config.as_bytes(), &[7; 1280]);
        if let Some(result) = recover(&mut trial, what, place.path()) {
            let wrong = verdict(result, kind, words);
            wrong.into_iter().for_each(|wrong| trial.fail(what, wrong));
        }
    }
    // In memory nothing is beside a list; where it has a path, the file of data is missing.
    let (kind, words) = match Monitor::LIMITS_TIME {
        true => (Unsupported, &["give the path"]),
        false => (Parse, &["is missing"]),
    };
    trial.refused(vec![("a list alone", list(&layer()).into_bytes(), kind, words)]);
    trial.end();
}

/// Models of which a file is changed.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let files = ["tensor-cache.json", "mlc-chat-config.json", DATA];
    let cases = ["q4f16_1", "q4f16_0", "q3f16_1", "q3f16_0", "e4m3_e4m3_f16", "awq"];
    let cases = cases.map(|case| {
        let model = data().join("mlc").join(case).join("model");
        files.map(|file| std::fs::read(model.join(file)).unwrap())
    });
    let (mut random, mut good) = (Random(29), 0);
    let place = tempdir().unwrap();
    let count = edit_count([150, 1000, 4000]);
    for i in 0..count {
        let [mut list, mut config, mut bytes] = cases[i % cases.len()].clone();
        match i / cases.len() % 4 {
            0 => bytes.truncate((random.next() >> 20) as usize % bytes.len()),
            1 => mutate(&mut config, &mut random),
            _ => mutate(&mut list, &mut random),
        }
        write(place.path(), &list, &config, &bytes);
        let result = recover(&mut trial, "an edit", place.path());
        good += usize::from(matches!(result, Some(Ok(_))));
    }
    trial.count_edits(count, good, 20);
    trial.end();
}
