//! A safetensors header by itself, read from any stream: what tools show of a file they do not have.

use std::collections::HashMap;
use std::io::Read;

use super::safetensors;
use crate::config::QuantConfig;
use crate::inspect::InspectInfo;
use crate::{Dtype, ParsedModel, QuantScheme, Result, TensorRole};

/// One tensor of a [`SafetensorsHeader`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorEntry {
    /// Name, as stored.
    pub name: String,
    /// Element type, as stored.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Begin and end of the data, from the end of the header.
    pub data_offsets: (usize, usize),
    /// What the tensor is for.
    pub role: TensorRole,
}

/// The header of a safetensors file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SafetensorsHeader {
    /// Every tensor, in the order of the data.
    pub tensors: Vec<TensorEntry>,
    /// The scheme of most quantized tensors.
    pub scheme: QuantScheme,
    /// The file's own metadata.
    pub metadata: Option<HashMap<String, String>>,
    /// Length of the JSON, in bytes.
    pub header_size: usize,
    info: InspectInfo,
}

/// Reads a safetensors header from `reader`: its eight bytes of length and then exactly that many, never
/// the data.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let file = std::fs::File::open("tests/data/demo/model-fp8.safetensors")?;
/// let header = anamnesis::parse_safetensors_header_from_reader(file)?;
/// println!("{}: {} tensors", header.scheme, header.tensors.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` with the reader's own error, or if the stream ends before the header; `Parse` if it is malformed.
pub fn parse_safetensors_header_from_reader<R: Read>(reader: R) -> Result<SafetensorsHeader> {
    let contents = safetensors::read_from(reader)?;
    let mut config = QuantConfig::default();
    config.add_metadata(&contents.metadata);
    let model = contents.into_model(config, None);
    let (info, roles) = model.inspect_roles();
    let ParsedModel { tensors, metadata, header_size, .. } = model;
    let base = 8 + header_size as u64;
    let entry = |(t, role): (crate::model::TensorInfo, TensorRole)| TensorEntry {
        data_offsets: ((t.offset - base) as usize, (t.offset - base + t.len) as usize),
        name: t.name,
        dtype: t.dtype,
        shape: t.shape,
        role,
    };
    Ok(SafetensorsHeader {
        tensors: tensors.into_iter().zip(roles).map(entry).collect(),
        scheme: info.format,
        metadata: (!metadata.is_empty()).then_some(metadata),
        header_size,
        info,
    })
}

impl From<&SafetensorsHeader> for InspectInfo {
    fn from(header: &SafetensorsHeader) -> Self {
        header.info.clone()
    }
}
