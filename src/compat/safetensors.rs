//! [`SafetensorsHeader`]: a safetensors header, read from any stream without tensor data: for tools
//! that inspect remote files.

mod companions;

use std::collections::HashMap;
use std::io::Read;

pub use self::companions::{
    AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
};
use crate::config::QuantConfig;
use crate::limits::Budget;
use crate::parse::safetensors::{read_at, read_from};
use crate::report::inspect::InspectInfo;
use crate::source::Source;
use crate::{Dtype, ParseLimits, ParsedModel, QuantScheme, Result, TensorRole};

/// One tensor of a [`SafetensorsHeader`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct TensorEntry {
    /// Name, as stored.
    pub name: String,
    /// Element type, as stored.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Begin and end of the data in bytes, from the end of the header.
    pub data_offsets: (usize, usize),
    /// Role of the tensor: a weight, or which companion of one.
    pub role: TensorRole,
}

/// The header of a safetensors file.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct SafetensorsHeader {
    /// Every tensor, in the order of the data.
    pub tensors: Vec<TensorEntry>,
    /// The scheme of most quantized tensors.
    pub scheme: QuantScheme,
    /// Entries of `__metadata__`; `None` if there are none. They are serialized in the order of the
    /// keys.
    #[serde(serialize_with = "super::serialize::sorted_if_any")]
    pub metadata: Option<HashMap<String, String>>,
    /// Length of the JSON in bytes.
    pub header_size: usize,
    /// Parameters of the GPTQ layers by their shapes, if `scheme` is GPTQ.
    pub gptq_config: Option<GptqConfig>,
    /// Parameters of the AWQ layers by their shapes, if `scheme` is AWQ.
    pub awq_config: Option<AwqConfig>,
    /// Parameters of the 4-bit BitsAndBytes weights by their shapes, if `scheme` is that.
    pub bnb_config: Option<BnbConfig>,
    #[serde(skip)]
    info: InspectInfo,
}

/// Reads a safetensors header from `reader`: its eight bytes of length and then exactly that many,
/// and no data.
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
/// `Io` with the reader's own error, or if the stream ends before the header; `Parse` if it is
/// malformed.
pub fn parse_safetensors_header_from_reader<R: Read>(reader: R) -> Result<SafetensorsHeader> {
    parse_safetensors_header_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Reads a safetensors header as [`parse_safetensors_header_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_safetensors_header_from_reader`]; `LimitExceeded` if the header exceeds
/// `limits`.
pub fn parse_safetensors_header_from_reader_with_limits<R: Read>(
    reader: R,
    limits: &ParseLimits,
) -> Result<SafetensorsHeader> {
    read_from(reader, &Budget::new(limits)).and_then(header)
}

/// Parses the header of a whole file in memory. Of the data only the length is checked.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let file = std::fs::read("tests/data/demo/model-fp8.safetensors")?;
/// let header = anamnesis::parse_safetensors_header(&file)?;
/// assert_eq!(header.quantized_count(), header.scale_count());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the file is malformed or truncated.
pub fn parse_safetensors_header(file: &[u8]) -> Result<SafetensorsHeader> {
    parse_safetensors_header_with_limits(file, &ParseLimits::default())
}

/// Parses the header of a whole file in memory as [`parse_safetensors_header`] does, within
/// `limits`.
///
/// # Errors
/// The errors of [`parse_safetensors_header`]; `LimitExceeded` if the header exceeds `limits`.
pub fn parse_safetensors_header_with_limits(
    file: &[u8],
    limits: &ParseLimits,
) -> Result<SafetensorsHeader> {
    let mut contents = read_at(&mut { file }, &Budget::new(limits))?;
    contents.sources.push(Source::HeaderOnly);
    header(contents)
}

/// The public header of a parsed one, with the role of each tensor.
fn header(contents: ParsedModel) -> Result<SafetensorsHeader> {
    let mut config = QuantConfig::default();
    config.add_metadata(&contents.metadata)?;
    let model = contents.complete(config, None, &ParseLimits::default());
    let (info, roles) = model.inspect_roles();
    let ParsedModel { tensors, metadata, header_size, .. } = model;
    let base = 8 + header_size as u64;
    let entry = |(t, role): (crate::model::TensorInfo, TensorRole)| TensorEntry {
        data_offsets: ((t.offset - base) as usize, (t.offset - base + t.len) as usize),
        name: t.name.into(),
        dtype: t.dtype,
        shape: t.shape.into(),
        role,
    };
    let mut header = SafetensorsHeader {
        tensors: tensors.into_iter().zip(roles).map(entry).collect(),
        scheme: info.format,
        metadata: (!metadata.is_empty()).then_some(metadata),
        header_size,
        gptq_config: None,
        awq_config: None,
        bnb_config: None,
        info,
    };
    header.describe();
    Ok(header)
}

impl From<&SafetensorsHeader> for InspectInfo {
    fn from(header: &SafetensorsHeader) -> Self {
        header.info.clone()
    }
}
