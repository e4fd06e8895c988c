//! The conversion pipeline: options, a plan of every output tensor and its offset, workers that
//! write the data, and a report.
//!
//! A module imports from those above it in this list alone:
//!
//! - `report`, `names`, `adapters`, `options`: what the caller asks for and is told; `asked`: whose
//!   problems count; `progress`.
//! - `cut`, `held`, `ahead`, `checksum`, `outcome`, `window`: a tensor's tiles, pieces that jobs read
//!   and write together, sums and failures; `encode`: how values become codes.
//! - `output`: a tensor and its jobs; `container`: which tensors, files and metadata an output has.
//! - `overflow`, `bodies`, `cast`: floats of another type; `draft`, `encodings`: what a tensor becomes.
//! - `whole`, `summary`, `drafts`: what becomes of each tensor; `plan`: every header, offset and job.
//! - `run`: the workers; `hashed`: sums of what is written; `stream`, `tensors`, `pair`: tensors in
//!   order, by name, beside those of another model.
//! - `destination`, `footprint`, `unfinished`, `manifest`, `sidecars`, `directory`: directories, the
//!   files beside the weights, and what is there already.
//! - `conversion`: a planned conversion, and how it is carried out.

mod adapters;
mod ahead;
pub(crate) mod asked;
mod bodies;
mod cast;
mod checksum;
mod container;
mod conversion;
mod cut;
mod destination;
mod directory;
mod draft;
mod drafts;
#[cfg(feature = "lethe")]
mod encode;
#[cfg(feature = "lethe")]
mod encodings;
#[cfg(not(feature = "lethe"))]
#[path = "convert/no_encodings.rs"]
mod encodings;
mod footprint;
mod hashed;
mod held;
mod manifest;
mod names;
mod options;
mod outcome;
mod output;
mod overflow;
pub(crate) mod pair;
mod parts;
mod plan;
pub(crate) mod progress;
mod report;
mod run;
mod sidecars;
mod stream;
mod summary;
mod tensors;
mod unfinished;
#[cfg(feature = "models")]
mod whole;
#[cfg(not(feature = "models"))]
#[path = "convert/no_whole.rs"]
mod whole;
mod window;

use std::path::Path;

pub use self::adapters::Adapter;
pub(crate) use self::cast::coordinates;
pub use self::conversion::Conversion;
pub(crate) use self::destination::partial_path;
pub(crate) use self::directory::Settled;
pub use self::directory::finish_parts;
pub(crate) use self::directory::{finish, is_input_of, settle};
pub(crate) use self::hashed::sums_of_directory;
pub use self::names::{NameChanges, parse_renames};
pub use self::options::{
    ConvertOptions, FloatCast, ModelScope, Progress, RememberOptions, Replace,
};
use self::plan::Plan;
pub use self::report::{Distance, Encoded, Errors, FileSum, Kept, Report, TensorErrors};
pub use self::stream::Panel;
pub use self::tensors::OutputTensor;
use self::tensors::VerifiedInputs;
#[cfg(feature = "models")]
pub(crate) use self::whole::items_of_whole;
use crate::Result;
use crate::limits::Budget;
use crate::model::{NameIndex, ParsedModel};

impl ParsedModel {
    /// Decodes every quantized tensor and writes a safetensors file. Other tensors are copied
    /// unchanged.
    ///
    /// The file appears under its name only when it is complete and synced; it then replaces an
    /// older file. Besides the header, a thread needs 4 to 8 MiB of memory, and at most 16 MiB more
    /// for codebooks or factors of low rank, whatever the size of the model. A model in a directory
    /// becomes a directory, which replaces an older one if that has weights.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// # let dir = tempfile::tempdir()?;
    /// # let output = dir.path().join("model-bf16.safetensors");
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let report = model.remember(&output, anamnesis::TargetDtype::BF16)?;
    /// println!("{} tensors recovered, {} bytes", report.recovered(), report.output_bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: the first tensor that cannot be decoded. It is
    ///   found before anything is written, unless the fault is in the tensor's data.
    /// - `Io`: the output is the input, or does not fit on the disk; it exists and the options say
    ///   [`no_replace`](RememberOptions::no_replace); a file of the input has changed since it was
    ///   parsed; or the operating system fails.
    /// - `Cancelled`: the token of the options is set.
    ///
    /// After an error there is no output under its name. An unfinished directory stays beside it,
    /// hidden, and can be resumed.
    pub fn remember(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<RememberOptions>,
    ) -> Result<Report> {
        self.plan(options.into())?.write(output)
    }

    /// Decodes every quantized tensor and returns the bytes of a safetensors file, the same bytes
    /// that [`remember`](Self::remember) writes to one file.
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded, or no memory
    ///   for the file.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        let mut options = ConvertOptions::from(options.into());
        options.single_file = true;
        self.plan(options)?.to_bytes()
    }

    /// Writes the model into the container that the options name, in constant memory.
    ///
    /// From GGUF to GGUF, quantized blocks are copied, unless the options ask for decoding. Every
    /// other quantized tensor is decoded.
    ///
    /// # Errors
    /// - `Unsupported`: the container cannot hold a tensor, or this build leaves it out.
    /// - The errors of [`remember`](Self::remember).
    pub fn convert(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.plan(options)?.write(output)
    }

    /// Encodes the model's weights to a quantization scheme, which also determines the container.
    ///
    /// Tensors that are quantized already are decoded first. The report lists the tensors that were
    /// encoded, those that were not with the reason, and the error that encoding introduced.
    ///
    /// ```
    /// use anamnesis::ForgetScheme;
    ///
    /// # fn main() -> anamnesis::Result<()> {
    /// # let directory = tempfile::tempdir()?;
    /// # let output = directory.path().join("model-nf4.safetensors");
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let report = model.forget(output, ForgetScheme::NF4)?;
    /// println!("{} tensors encoded", report.encoded.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: a value that the scheme cannot hold, such as NaN.
    /// - The errors of [`remember`](Self::remember).
    #[cfg(feature = "lethe")]
    pub fn forget(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.plan(options)?.write(output)
    }

    /// Plans a conversion: every output tensor with its type, size and place. Reads no tensor data
    /// except the small tensors that describe a quantization.
    ///
    /// # Errors
    /// - `Parse` or `Unsupported`: the first tensor that cannot be converted, or options that
    ///   contradict each other.
    /// - `LimitExceeded`: the output's tensors are larger than the limits of the model allow.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    pub fn plan(&self, options: impl Into<ConvertOptions>) -> Result<Conversion<'_>> {
        let options = options.into().with_default_encoding()?;
        let plan = Plan::new(self, &options)?;
        Budget::new(&self.limits).grow(plan.data_len, "the output's tensors")?;
        Ok(Conversion {
            plan,
            model: self,
            options,
            names: NameIndex::default(),
            verified: VerifiedInputs::default(),
        })
    }
}
