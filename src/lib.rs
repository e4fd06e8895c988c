//! Parses any tensor format and recovers any precision.
//!
//! A model file is [parsed](parse()) into one [`ParsedModel`]: a flat list of named tensors with
//! the quantization config found beside it. Each quantized tensor is recognized by itself, so a
//! file may mix schemes. [`remember`](ParsedModel::remember) decodes them bit-exactly to BF16, F16
//! or F32, in constant memory and on all cores.
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
//! If a tensor cannot be decoded faithfully, the result is an [error](AnamnesisError) that names
//! the tensor and the reason. Quantization codes are never passed on as if they were weights.
//!
//! # By task
//!
//! | task | where to begin |
//! |---|---|
//! | decode a file or a directory | [`parse()`], then [`ParsedModel::remember`] with a [`TargetDtype`], or with [`RememberOptions`]: threads, progress, cancellation (feature `remember`, which all but `npz` and `pth` imply) |
//! | decode into memory | [`ParsedModel::remember_to_bytes`]; tensor by tensor [`ParsedModel::for_each_tensor`], in pieces [`ParsedModel::for_each_panel`] |
//! | decode single weights by name | [`ParsedModel::plan`], then [`Conversion::tensor`] or [`Conversion::rows`] |
//! | read what is stored | [`ParsedModel::tensors`] lists every [`Tensor`]; [`ParsedModel::inspect`] sums up; more is in [`inspect`](mod@inspect) |
//! | read a model from memory, or over a network | [`parse_bytes`], [`parse_from_reader`] |
//! | read a remote header alone | the functions `…_from_reader` of the modules in [`parse`](mod@parse) |
//! | encode | `ParsedModel::forget` with a `ForgetScheme` (feature `lethe`) |
//! | write another container | [`ParsedModel::convert`] with [`ConvertOptions`]; what they and reports consist of is in [`convert`](mod@convert) |
//! | change metadata of a file | [`edit()`] with the options of [`edit`](mod@edit) |
//! | compare two models | [`ParsedModel::diff`] with [`DiffOptions`]; the report's parts are in [`diff`](mod@diff) |
//! | find what is wrong with a model | `ParsedModel::check` with `CheckOptions` (feature `check`) |
//! | decode or encode slices of bytes | the functions of [`remember`] and [`lethe`] |
//! | bound what a file may claim | [`ParseLimits`]; every function that parses has a form that takes them |
//!
//! Functions and types of single containers are in the modules of [`parse`](mod@parse). The crate's
//! root exports the names of all modules as well; this page lists those that most programs begin with.

#[cfg(target_endian = "big")]
compile_error!("tensor data is little-endian, and so must the host be");

#[cfg(feature = "benchmarks")]
pub mod benchable_apis;
mod cancel;
#[cfg(feature = "cli")]
pub mod cli;
mod compat;
mod config;
pub mod convert;
#[cfg(any(feature = "tensorflow", feature = "zarr"))]
mod crc32c;
mod dtype;
pub mod edit;
mod element;
pub mod error;
#[cfg(feature = "models")]
mod families;
mod features;
#[doc(hidden)]
pub mod hooks;
pub mod lethe;
pub mod limits;
pub mod model;
pub mod parse;
mod protobuf;
mod records;
pub mod remember;
mod report;
mod simd;
mod sort;
mod source;
#[cfg(test)]
mod test_utils;
mod threads;
#[cfg(feature = "models")]
mod tokenizer;
mod write;

// What the front page shows, by task.

#[doc(inline)]
pub use model::{Container, ParsedModel, Tensor, TensorRole};
#[cfg(feature = "ollama")]
#[doc(inline)]
pub use parse::ollama::resolve_ollama_model;
#[doc(inline)]
pub use parse::{parse, parse_bytes, parse_from_reader};

pub use cancel::CancelToken;
pub use config::QuantConfig;
#[doc(inline)]
pub use convert::{
    Adapter, Conversion, ConvertOptions, FloatCast, ModelScope, Progress, RememberOptions, Report,
    finish_parts,
};
#[doc(inline)]
pub use edit::edit;
#[cfg(feature = "lethe")]
#[doc(inline)]
pub use lethe::{Forget, ForgetScheme};
pub use parse::hub::resolve_hub_model;
#[doc(inline)]
pub use remember::QuantScheme;
#[cfg(feature = "check")]
#[doc(inline)]
pub use report::check::{CheckOptions, CheckReport};
#[doc(inline)]
pub use report::diff::{DiffOptions, DiffReport};
#[doc(inline)]
pub use report::inspect::{InspectInfo, ListedTensor};
pub use write::ConvertTarget;

pub use dtype::{Dtype, TargetDtype};
#[doc(inline)]
pub use error::{AnamnesisError, ErrorKind, Result};
#[doc(inline)]
pub use limits::ParseLimits;

// The names of the modules, which the root has too, as the published interface has those of containers
// and schemes. Their modules document them.
#[doc(hidden)]
pub use convert::{
    Distance, Encoded, Errors, FileSum, Kept, NameChanges, OutputTensor, Panel, Replace,
    TensorErrors, parse_renames,
};
#[doc(hidden)]
pub use edit::{EditOptions, EditReport, EditWritten, KeyChange, KeyValue};
#[cfg(feature = "lethe")]
#[doc(hidden)]
pub use lethe::GgufTypes;
#[cfg(feature = "bnb")]
#[doc(hidden)]
pub use lethe::bnb::*;
#[cfg(feature = "npz")]
#[doc(hidden)]
pub use parse::npz::*;
#[cfg(feature = "pth")]
#[doc(hidden)]
pub use parse::pth::*;
#[doc(hidden)]
pub use parse::safetensors::*;
#[doc(hidden)]
pub use parse::{
    detect_format, detect_format_from_reader, parse_bytes_with_limits,
    parse_from_reader_with_limits, parse_with_limits,
};
#[cfg(feature = "gguf")]
#[doc(hidden)]
pub use parse::{gguf::*, gguf_write::*};
#[cfg(feature = "gguf")]
#[doc(hidden)]
pub use remember::gguf::*;
#[doc(hidden)]
pub use remember::{CodeType, Fp8Format, Granularity, SchemeCount};
#[doc(hidden)]
pub use remember::{awq::*, bnb::*, fp8::*, gptq::*};
#[cfg(feature = "check")]
#[doc(hidden)]
pub use report::check::{Finding, Severity};
#[doc(hidden)]
pub use report::diff::{
    ComparedTensor, ElementValue, FieldDiff, FirstDifference, TensorDiff, ValueDiff,
};
#[doc(hidden)]
pub use report::inspect::{
    DtypeCount, Histogram, ModelDescription, ModuleClass, ShardNumber, TensorStatistics,
    format_bytes,
};
// The reports' modules themselves.
#[cfg(feature = "check")]
pub use report::check;
pub use report::{diff, inspect};
