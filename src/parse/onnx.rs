//! ONNX: a model is one message of Protocol Buffers. Its graph has the weights: initializers, values
//! of `Constant` nodes, and those of graphs in the attributes of nodes. Their data is in the file or in
//! others beside it, and is not read here.
//!
//! Format: `onnx.proto`, and `docs/ExternalData.md` of ONNX.

mod external;
mod fields;
mod found;
mod graph;
mod names;
mod ops;
mod place;
mod quantized;
mod sparse;
mod tensor;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use self::graph::GraphWalk;
use super::external::ExternalFiles;
use super::message::MessageReader;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Reads the messages of a model. The tensors' data is passed over, but for numbers of variable
/// length, which are counted.
///
/// # Errors
/// `Parse` if the file, or the place of a tensor's data, is malformed; `Unsupported` if data lies in
/// other files and the model was not given by a path; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut walk = GraphWalk::new(MessageReader::new(source), budget);
    let file_len = walk.file.len;
    budget.tables(0, 0, file_len)?;
    let metadata = read_model(&mut walk, 0..file_len)?;
    let GraphWalk { found, scopes, nodes, lost, .. } = walk;
    let mut contents = ParsedModel::new(Container::Onnx, 0);
    contents.metadata = metadata;
    contents.sources.push(source.share());
    let mut external = ExternalFiles::new("ONNX", path);
    let names = names::of_tensors(&found, &scopes, &lost)?;
    for (tensor, name) in found.iter().zip(&names) {
        let added = tensor::add(&mut contents, tensor, name, source, &mut external, budget);
        added.map_err(|error| error.in_tensor(&name.text))?;
    }
    external.check_ranges(&contents)?;
    names::note(&names, &mut contents.notes);
    quantized::mark(&mut contents, &found, &scopes, &names, &nodes);
    let stored: u64 = contents
        .tensors
        .iter()
        .filter(|t| t.source == 0)
        .map(|t| t.len)
        .sum();
    contents.header_size = file_len.saturating_sub(stored) as usize;
    Ok(contents)
}

/// Walks over a `ModelProto`, and returns what it says of itself.
fn read_model(walk: &mut GraphWalk<'_>, mut rest: Range<u64>) -> Result<HashMap<String, String>> {
    let mut metadata = HashMap::new();
    let mut graphs = 0;
    while let Some(field) = walk.file.next(&mut rest)? {
        let text = match (field.number, field.bytes(), field.varint()) {
            (1, None, Some(version)) => Some(("onnx.ir_version", version.to_string())),
            (5, None, Some(version)) => Some(("onnx.model_version", version.to_string())),
            (2, Some(text), _) => Some(("onnx.producer_name", walk.file.text(text)?)),
            (3, Some(text), _) => Some(("onnx.producer_version", walk.file.text(text)?)),
            (4, Some(text), _) => Some(("onnx.domain", walk.file.text(text)?)),
            _ => None,
        };
        if let Some((key, text)) = text.filter(|(_, text)| !text.is_empty()) {
            metadata.insert(key.to_owned(), text);
        }
        let Some(message) = field.bytes() else {
            continue;
        };
        match field.number {
            7 if graphs > 0 => return Err(AnamnesisError::parse("it has two graphs")),
            7 => {
                graphs += 1;
                walk.graph(message, 0, 1)?;
            }
            8 => {
                let (domain, version) = walk.file.entry(message)?;
                let domain = if domain.is_empty() {
                    "ai.onnx"
                } else {
                    &domain
                };
                metadata.insert(format!("onnx.opset.{domain}"), version);
            }
            14 => {
                let (key, value) = walk.file.entry(message)?;
                walk.budget.tables(0, 1, 0)?;
                metadata.entry(key).or_insert(value);
            }
            25 => walk.function(message)?,
            _ => {}
        }
    }
    match graphs {
        0 => Err(AnamnesisError::parse("ONNX: it has no graph")),
        _ => Ok(metadata),
    }
}
