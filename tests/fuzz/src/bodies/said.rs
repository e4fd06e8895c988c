//! What this crate says of a file: its tensors with checksums of their values, or the error. The
//! scripts in `tests/data/generate/differential` compare it with what other libraries say.

use anamnesis::{
    GgufMetadataArray, GgufMetadataValue, ParsedModel, Result, parse_bytes_with_limits,
};
use serde_json::{Value, json};

use super::model::limits;

/// What is said of the file `bytes`, of the container in which it is recognized.
pub fn said(bytes: &[u8]) -> Value {
    match parse_bytes_with_limits(bytes.to_vec(), &limits()).and_then(|model| contents(&model)) {
        Ok(contents) => contents,
        Err(error) => json!({"kind": format!("{:?}", error.kind()), "error": error.to_string()}),
    }
}

/// Names, dtypes, shapes and values. Every byte is read and compared with its checksum.
fn contents(model: &ParsedModel) -> Result<Value> {
    model.verify_checksums()?;
    let mut tensors = Vec::new();
    for t in model.tensors() {
        let crc = crc32fast::hash(&t.bytes()?);
        tensors.push(json!([t.name(), t.dtype().to_string(), t.shape(), crc]));
    }
    let skipped: Vec<&str> = model.skipped_arrays().map(|(name, _)| name).collect();
    let mut said =
        json!({"in": model.container().to_string(), "tensors": tensors, "skipped": skipped});
    said["metadata"] = match model.gguf() {
        Some(gguf) => gguf
            .metadata()
            .iter()
            .map(|(key, value)| (key.to_owned(), plain(&value)))
            .collect(),
        None => json!(model.metadata()),
    };
    Ok(said)
}

/// A value of GGUF metadata as JSON: floats as their bits, nested arrays as one.
fn plain(value: &GgufMetadataValue) -> Value {
    match value {
        GgufMetadataValue::F32(x) => json!(x.to_bits()),
        GgufMetadataValue::F64(x) => json!(x.to_bits()),
        GgufMetadataValue::U8(n) => json!(n),
        GgufMetadataValue::I8(n) => json!(n),
        GgufMetadataValue::U16(n) => json!(n),
        GgufMetadataValue::I16(n) => json!(n),
        GgufMetadataValue::U32(n) => json!(n),
        GgufMetadataValue::I32(n) => json!(n),
        GgufMetadataValue::U64(n) => json!(n),
        GgufMetadataValue::I64(n) => json!(n),
        GgufMetadataValue::Bool(b) => json!(b),
        GgufMetadataValue::String(text) => json!(text),
        GgufMetadataValue::Array(array) => Value::Array(items(array)),
        _ => json!("a type that is new here"),
    }
}

fn items(array: &GgufMetadataArray) -> Vec<Value> {
    match array {
        GgufMetadataArray::F32(all) => all.iter().map(|x| json!(x.to_bits())).collect(),
        GgufMetadataArray::F64(all) => all.iter().map(|x| json!(x.to_bits())).collect(),
        GgufMetadataArray::U8(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::I8(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::U16(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::I16(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::U32(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::I32(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::U64(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::I64(all) => all.iter().map(|n| json!(n)).collect(),
        GgufMetadataArray::Bool(all) => all.iter().map(|b| json!(b)).collect(),
        GgufMetadataArray::String(all) => all.iter().map(|text| json!(text)).collect(),
        GgufMetadataArray::Array(all) => all.iter().flat_map(items).collect(),
        _ => vec![json!("a type that is new here")],
    }
}
