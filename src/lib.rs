//! Parses any tensor format and recovers any precision.
//!
//! A model file is [parsed](parse()) into one [`ParsedModel`]: a flat list of named tensors with the
//! quantization config found beside it. Each quantized tensor is recognized by itself, so a file may mix
//! schemes. [`remember`](ParsedModel::remember) decodes them bit-exactly to BF16, F16 or F32, in constant
//! memory and on all cores.
//!
//! ```
//! # fn main() -> anamnesis::Result<()> {
//! let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
//! println!("{}", model.inspect());
//! let bytes = model.remember_to_bytes(anamnesis::TargetDtype::F32)?;
//! # assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! If a tensor cannot be decoded faithfully, the result is an [error](AnamnesisError) that names the tensor and the
//! reason. Quantization codes are never passed on as if they were weights.

#[cfg(target_endian = "big")]
compile_error!("tensor data is little-endian, and so must the host be");

#[cfg(feature = "models")]
mod arch;
#[cfg(feature = "benchmarks")]
pub mod benchable_apis;
mod cancel;
#[cfg(feature = "check")]
mod check;
#[cfg(feature = "cli")]
pub mod cli;
mod compat;
mod config;
mod containers;
mod convert;
mod diff;
mod dtype;
mod element;
pub mod error;
mod features;
#[cfg(feature = "lethe")]
mod forget;
pub mod inspect;
mod kernels;
pub mod limits;
mod records;
mod scheme;
mod simd;
mod source;
#[cfg(test)]
mod test_data;
#[cfg(feature = "models")]
mod tokenizer;

pub use cancel::CancelToken;
#[cfg(feature = "check")]
pub use check::{CheckOptions, CheckReport, Finding, Severity};
pub use compat::paths::{lethe, model, parse, remember};
pub use config::QuantConfig;
pub use containers::model::{Container, ParsedModel, Tensor, TensorRole};
pub use containers::parse::{
    detect_format, detect_format_from_reader, parse, parse_bytes, parse_bytes_with_limits,
    parse_from_reader, parse_from_reader_with_limits, parse_with_limits,
};
pub use containers::write::ConvertTarget;
pub use convert::{
    ConvertOptions, Distance, Encoded, Errors, Kept, ModelScope, OutputTensor, Panel, Progress,
    Recovery, RememberOptions, Report, TensorErrors, finish_parts,
};
pub use diff::{
    ComparedTensor, DiffOptions, DiffReport, ElementValue, FieldDiff, FirstDifference, TensorDiff,
    ValueDiff,
};
pub use dtype::{Dtype, TargetDtype};
pub use error::{AnamnesisError, ErrorKind, Result};
#[cfg(feature = "lethe")]
pub use forget::{Forget, ForgetScheme};
pub use inspect::{
    DtypeCount, Histogram, InspectInfo, ListedTensor, ModelDescription, ModuleClass, ShardNumber,
    TensorStatistics, format_bytes,
};
#[cfg(feature = "bnb")]
pub use lethe::bnb::*;
pub use limits::ParseLimits;
#[cfg(feature = "npz")]
pub use parse::npz::*;
#[cfg(feature = "pth")]
pub use parse::pth::*;
#[cfg(feature = "ollama")]
pub use parse::resolve_ollama_model;
pub use parse::{
    AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
    SafetensorsHeader, TensorEntry, parse_safetensors_header, parse_safetensors_header_from_reader,
    parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
};
#[cfg(feature = "gguf")]
pub use parse::{gguf::*, gguf_write::*};
#[cfg(feature = "gguf")]
pub use remember::gguf::*;
pub use remember::{awq::*, bnb::*, fp8::*, gptq::*};
pub use scheme::{CodeType, Fp8Format, Granularity, QuantScheme, SchemeCount};
