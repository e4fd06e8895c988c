//! Models that Keras has quantized, whose configs say something else.

use std::io::Read;

use anamnesis::{AnamnesisError, TargetDtype, parse_bytes};

use crate::common::data;
use crate::common::zip::{Member, Zip};

/// The model of a golden with another config, or without one.
fn model(case: &str, config: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let path = data()
        .join("keras_quantized")
        .join(case)
        .join("model.keras");
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut members = Vec::new();
    for i in 0..archive.len() {
        let mut member = archive.by_index(i).unwrap();
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        let name = member.name().unwrap().to_string();
        let content = match name.as_str() {
            "config.json" => config(std::str::from_utf8(&content).unwrap()).map(String::into_bytes),
            _ => Some(content),
        };
        members.extend(content.map(|content| Member::stored(&name, &content)));
    }
    Zip::of(&members).file()
}

fn decoded(bytes: Vec<u8>) -> anamnesis::Result<Vec<u8>> {
    parse_bytes(bytes)?.remember_to_bytes(TargetDtype::F32)
}

/// Codes that the config does not explain are never copied.
#[test]
fn other_configs() {
    let same = model("int8_odd", |json| Some(json.to_owned()));
    decoded(same).unwrap();
    let rows: [(&str, &str, &str); 5] = [
        ("\"Dense\"", "\"MyDense\"", "`MyDense` in mode int8"),
        ("\"mode\": \"int8\"", "\"mode\": \"awq/4/128\"", "in mode awq/4/128"),
        ("\"mode\": \"int8\"", "\"mode\": \"int4\"", "in mode int4"),
        ("\"name\": \"last\"", "\"name\": \"other\"", "that no config describes"),
        ("\"output_dim\": 7", "\"output_dim\": 8", "`Embedding` in mode int8"),
    ];
    for (from, to, words) in rows {
        let changed = model("int8_odd", |json| {
            assert!(json.contains(from), "{from}");
            Some(json.replace(from, to))
        });
        let error = decoded(changed).expect_err(to).to_string();
        assert!(error.contains(words), "{to}: {error}");
    }
    let none = decoded(model("int8_odd", |_| None))
        .unwrap_err()
        .to_string();
    assert!(none.contains("that no config describes"), "{none}");
    let broken = decoded(model("int8_odd", |_| Some("{".to_owned()))).unwrap_err();
    assert!(matches!(broken, AnamnesisError::Parse { .. }), "{broken}");
    // Columns of four bits are those of the config.
    let columns = |json: &str| Some(json.replace("\"output_dim\": 7", "\"output_dim\": 6"));
    let columns = decoded(model("int4_odd", columns)).unwrap_err().to_string();
    assert!(columns.contains("in mode int4"), "{columns}");
}

/// Layers inside of an attention are in no config: what is said of the attention must agree with their sizes, and
/// where it tells too little they are an error.
#[test]
fn layers_inside() {
    let rows: [(&str, &str, &str, &str); 8] = [
        ("int8_attention", "\"num_heads\": 2", "\"num_heads\": 3", "`EinsumDense` in mode int4"),
        ("int8_attention", "\"key_dim\": 3", "\"key_dim\": 4", "`EinsumDense` in mode int4"),
        ("int8_attention", "\"MultiHeadAttention\"", "\"MyAttention\"", "that no config describes"),
        (
            "int8_attention",
            "\"name\": \"cross\"",
            "\"name\": \"other\"",
            "that no config describes",
        ),
        ("int8_attention", "\"query_shape\": [null, 5, 9]", "\"x\": 1", "in a mode that neither"),
        ("int4_blocks_attention", "\"num_heads\": 2", "\"num_heads\": 4", "in mode int4/4"),
        ("int4_paired_attention", "\"key_dim\": 3", "\"key_dim\": 6", "in mode int4"),
        ("int4_paired_attention", "\"query_shape\": [null, 5, 9]", "\"x\": 1", "neither config"),
    ];
    for (case, from, to, words) in rows {
        decoded(model(case, |json| Some(json.to_owned()))).unwrap();
        let changed = model(case, |json| {
            assert!(json.contains(from), "{from}");
            Some(json.replace(from, to))
        });
        let error = decoded(changed).expect_err(to).to_string();
        assert!(error.contains(words), "{to}: {error}");
    }
}

/// Layers of a model of KerasHub, whose sizes and modes must agree with those of its config.
#[test]
fn models_of_kerashub() {
    let rows: [(&str, &str, &str, &str); 6] = [
        ("hub_gemma_int4", "\"num_query_heads\": 4", "\"num_query_heads\": 8", "in mode int4/-1"),
        ("hub_gemma_int4", "\"hidden_dim\": 8", "\"hidden_dim\": 5", "`ReversibleEmbedding` in"),
        ("hub_gemma_int8", "\"head_dim\": 4", "\"head_dim\": 8", "in mode int8"),
        ("hub_gemma_int8", "GemmaBackbone", "GammaBackbone", "that no config describes"),
        ("hub_llama_int4_blocks", "\"int4/4\"", "\"int4/2\"", "does not fit"),
        ("hub_llama_int4_blocks", "\"int4/4\"", "\"awq/4/128\"", "in mode awq/4/128"),
    ];
    let directory = crate::common::tempdir().unwrap();
    let [file, config] =
        ["model.weights.h5", "config.json"].map(|name| directory.path().join(name));
    for (case, from, to, words) in rows {
        let case = data().join("keras_quantized").join(case);
        std::fs::copy(case.join("model.weights.h5"), &file).unwrap();
        let json = std::fs::read_to_string(case.join("config.json")).unwrap();
        assert!(json.contains(from), "{from}");
        std::fs::write(&config, json.replace(from, to)).unwrap();
        let error = first_error(&file);
        assert!(error.contains(words), "{to}: {error}");
    }
}

/// Weights alone, whose config is in a file beside them: the codes of a file that has none are an error, and so are
/// those of one whose config leads out of its directory, or that tells other sizes.
#[test]
fn config_beside() {
    let case = data().join("keras_quantized/int4_paired_weights");
    let directory = crate::common::tempdir().unwrap();
    let [file, config] =
        ["model.weights.h5", "config.json"].map(|name| directory.path().join(name));
    std::fs::copy(case.join("model.weights.h5"), &file).unwrap();
    assert!(first_error(&file).contains("`config.json` belongs beside the file"));
    let json = std::fs::read_to_string(case.join("config.json")).unwrap();
    for (from, to) in
        [("\"units\": 9", "\"units\": 8"), ("\"int4\"", "\"int8\""), ("\"int4\"", "\"int4/-1\"")]
    {
        assert!(json.contains(from), "{from}");
        std::fs::write(&config, json.replace(from, to)).unwrap();
        let error = first_error(&file);
        assert!(error.contains("Keras's `"), "{to}: {error}");
    }
    std::fs::remove_file(&config).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(case.join("config.json"), &config).unwrap();
        assert!(first_error(&file).contains("`config.json` belongs beside the file"));
    }
}

fn first_error(file: &std::path::Path) -> String {
    let model = anamnesis::parse(file).unwrap();
    assert!(!model.inspect().problems.is_empty());
    model
        .remember_to_bytes(TargetDtype::F32)
        .unwrap_err()
        .to_string()
}

/// A whole model in `.h5` has names and a config in an attribute. Codes of a layer that the config does not have
/// are an error, and never copied.
#[test]
fn whole_models() {
    let bytes = std::fs::read(data().join("keras_quantized/int8_whole/model.h5")).unwrap();
    let (from, to) = (b"\"name\": \"square\"", b"\"name\": \"sqvare\"");
    let at = bytes
        .windows(from.len())
        .position(|window| window == from)
        .unwrap();
    let mut changed = bytes.clone();
    changed[at..at + to.len()].copy_from_slice(to);
    decoded(bytes).unwrap();
    let error = decoded(changed).unwrap_err().to_string();
    assert!(error.contains("model_weights/square/square/kernel"), "{error}");
    assert!(error.contains("that no config describes"), "{error}");
}

/// Without zero points, which Keras 3.14 and later do not save, GPTQ's codes are an error; and so are sizes of another
/// layer, and a group that is out of range.
#[test]
fn indexed() {
    for (from, to) in [
        ("\"units\": 7", "\"units\": 8"),
        ("\"mode\": \"gptq/4/4\"", "\"mode\": \"gptq/8/4\""),
        ("\"mode\": \"gptq/4/4\"", "\"mode\": \"gptq/5/4\""),
        ("\"mode\": \"gptq/4/4\"", "\"mode\": \"int8\""),
        ("\"mode\": \"gptq/4/4\"", "\"mode\": \"int4/4\""),
    ] {
        let changed = model("gptq", |json| {
            assert!(json.contains(from), "{from}");
            Some(json.replace(from, to))
        });
        decoded(changed).expect_err(to);
    }
    let same = model("gptq", |json| Some(json.to_owned()));
    let index: Vec<u8> = (0..12)
        .flat_map(|i| ((i / 4) as f32).to_le_bytes())
        .collect();
    let floats: Vec<u8> = (0..12)
        .flat_map(|i| (i as f32 / 4.0).to_le_bytes())
        .collect();
    let at = [index, floats]
        .iter()
        .find_map(|index| same.windows(48).position(|window| window == index));
    let at = at.unwrap();
    for group in [3.0f32, -1.0, f32::NAN, f32::INFINITY] {
        let mut changed = same.clone();
        changed[at + 44..at + 48].copy_from_slice(&group.to_le_bytes());
        let error = decoded(changed).unwrap_err().to_string();
        assert!(
            error.contains("group") && error.contains("of 3") || error.contains("CRC"),
            "{error}"
        );
    }
}
