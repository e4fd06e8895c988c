//! The options of a conversion.

#[cfg(feature = "lethe")]
mod encoding;
#[cfg(not(feature = "lethe"))]
#[path = "options/no_encoding.rs"]
mod encoding;
mod remember;

use std::path::PathBuf;

pub(super) use self::remember::Callback;
pub use self::remember::{FloatCast, Progress, RememberOptions, Replace};
use super::adapters::Adapter;
use super::names::NameChanges;
#[cfg(feature = "lethe")]
use crate::lethe::{Forget, ForgetScheme};
#[cfg(feature = "gguf")]
use crate::model::gguf::GgufMetadataValue;
#[cfg(feature = "gguf")]
use crate::parse::gguf::GgufEdit;
use crate::{ConvertTarget, TargetDtype};

/// How much of a model an output has beside its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ModelScope {
    /// A Hugging Face model becomes a whole GGUF model if its config names a class; everything else
    /// is written as tensors.
    #[default]
    Auto,
    /// The tensors, under the names that they have.
    Tensors,
    /// A model that runs: tensors under the other side's names, settings and tokenizer. What cannot
    /// be one is an error. A GGUF model with its tower ([`with_mmproj`](crate::ParsedModel::with_mmproj))
    /// becomes the multimodal one.
    Model,
    /// The image tower and the projector of a multimodal Hugging Face model, as llama.cpp loads
    /// them beside its language model (`mmproj`).
    ImageTower,
    /// Settings and tokenizer of a model as a GGUF file without tensors, of a Hugging Face directory or
    /// of GGUF.
    Vocabulary,
    /// The layers of a Hugging Face model that predict further tokens as a GGUF file, with the
    /// embedding and the output that they share with the model.
    Prediction,
    /// A whole GGUF model of a Hugging Face directory, without these layers.
    WithoutPrediction,
}

impl ModelScope {
    /// The option of the program that asks for this part of a GGUF model; `None`: it is no part of
    /// one alone.
    pub(super) fn part_option(self) -> Option<&'static str> {
        match self {
            Self::Vocabulary => Some("--vocab-only"),
            Self::Prediction => Some("--mtp"),
            Self::WithoutPrediction => Some("--no-mtp"),
            _ => None,
        }
    }
}

/// Options of [`convert`](crate::ParsedModel::convert). A [`ConvertTarget`] converts into them,
/// with defaults for the rest.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Container of the output.
    pub target: ConvertTarget,
    /// Element type of decoded tensors, threads, replacement, cancellation and progress.
    pub run: RememberOptions,
    /// Whether quantized tensors that the container could hold unchanged are decoded: GGUF blocks,
    /// FP8 without scales.
    pub decode: bool,
    /// Metadata of a GGUF output. Each key replaces that of the input.
    #[cfg(feature = "gguf")]
    pub gguf_metadata: Vec<(String, GgufMetadataValue)>,
    /// Changes of the metadata of a GGUF output, after `gguf_metadata`. Values get the types of their
    /// keys.
    #[cfg(feature = "gguf")]
    pub gguf_edits: Vec<GgufEdit>,
    /// Whether arrays that no tensor can hold (text, objects, …) are left out, and tensors that
    /// cannot be decoded. By default they are an error, unless other options leave them out.
    pub skip_unsupported: bool,
    /// Whether it is an error that something is taken for granted of a tensor: that integers are
    /// no codes, or which of two layouts of the same names and shapes a weight has. By default the
    /// report has a note.
    pub strict: bool,
    /// Most bytes of tensor data in a file of the output; a larger tensor gets a file of its own.
    /// With a limit, safetensors files are written to a directory with an index. `None`: a
    /// directory of safetensors is split as the input is, and everything else is one file.
    pub max_shard_size: Option<u64>,
    /// Whether a model in many files becomes one file. By default a directory becomes a directory
    /// of safetensors.
    pub single_file: bool,
    /// Names of the output tensors to keep: patterns with `*`, `?`, `[a-c]`, `[!a]` and `{a,b}`, or
    /// `re:` and a regular expression. If empty, all are kept.
    pub include: Vec<String>,
    /// Names of the output tensors to leave out, in the same notation. It takes precedence over
    /// `include`.
    pub exclude: Vec<String>,
    /// Tensors that get other names, and tensors that are left out.
    pub names: NameChanges,
    /// Which part of a directory is made, and the number of parts; parts count from 1. When all
    /// parts are done, [`finish_parts`](crate::finish_parts) gives the directory its name.
    pub part: Option<(usize, usize)>,
    /// Whether the SHA-256 of each output file is computed while it is written; see
    /// [`Report::sha256`](crate::Report). It takes the feature `check`, and does not concern
    /// outputs in memory and streams.
    pub sha256: bool,
    /// Whether an unfinished directory is continued. It must have been begun with the same options
    /// and input.
    pub resume: bool,
    /// Whether the output is a model that other programs run, or only its tensors.
    pub scope: ModelScope,
    /// Whether queries, keys and values of each layer become one tensor of a GGUF model.
    pub fuse_qkv: bool,
    /// Whether gates and inner projections of each layer's experts become one tensor of a GGUF model.
    pub fuse_gate_up_exps: bool,
    /// Whether matrices of a Hugging Face model that are FP8 with scales become Q8_0 in its GGUF model,
    /// and all others floats.
    pub fp8_as_q8: bool,
    /// llama.cpp's name of the pre-tokenizer, for a GGUF file of a whole model; `None`: the one
    /// that fits.
    pub pre_tokenizer: Option<String>,
    /// The model that the input, an adapter, was trained for: a directory with its `config.json`.
    /// One of PEFT becomes a GGUF file, which llama.cpp loads beside the model, and one in GGUF a
    /// directory as PEFT has it; one of an image or video model gets the names of that model, or
    /// PEFT's in a directory. Or the target of the input, a draft for speculative decoding, which
    /// has its tokenizer.
    pub base: Option<PathBuf>,
    /// Whether an adapter of an image or video model, with a `base`, gets the names that kohya's
    /// scripts give it (`lora_unet_….lora_down.weight`), and not those of diffusers or ComfyUI.
    pub kohya_names: bool,
    /// Adapters that are merged into the weights, in this order. A weight that one changes is
    /// decoded, and keeps its dtype or, if it is quantized, gets that of decoded tensors.
    pub adapters: Vec<Adapter>,
    /// Files that the output must not replace, besides those of the model and of these options: those
    /// that options were read from, say.
    pub files: Vec<PathBuf>,
    /// Whether every tensor is copied as it is stored, whatever scheme it belongs to.
    pub(crate) copies_all: bool,
    /// The scheme that tensors are encoded to, and which tensors. `None`: nothing is encoded.
    #[cfg(feature = "lethe")]
    pub forget: Option<Forget>,
}

impl ConvertOptions {
    /// Returns default options with the container `target`.
    #[must_use]
    pub fn new(target: ConvertTarget) -> Self {
        Self { target, ..Self::default() }
    }

    /// Options that copy every tensor to the container `target` as it is stored, codes and scales too.
    #[must_use]
    pub fn copying(target: ConvertTarget) -> Self {
        Self { copies_all: true, ..Self::new(target) }
    }

    /// Sets the element type, threads, replacement, cancellation and progress.
    #[must_use]
    pub fn with_run(mut self, run: RememberOptions) -> Self {
        self.run = run;
        self
    }

    /// Sets whether quantized tensors are decoded that the container could hold unchanged.
    #[must_use]
    pub fn with_decode(mut self, decode: bool) -> Self {
        self.decode = decode;
        self
    }

    /// Sets metadata of a GGUF output. Each key replaces that of the input.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn with_gguf_metadata(mut self, metadata: Vec<(String, GgufMetadataValue)>) -> Self {
        self.gguf_metadata = metadata;
        self
    }

    /// Sets changes of the metadata of a GGUF output, whose values get the types of their keys.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn with_gguf_edits(mut self, edits: Vec<GgufEdit>) -> Self {
        self.gguf_edits = edits;
        self
    }

    /// Sets whether arrays that no tensor can hold are left out.
    #[must_use]
    pub fn with_skip_unsupported(mut self, skip: bool) -> Self {
        self.skip_unsupported = skip;
        self
    }

    /// Sets whether it is an error that something is taken for granted of a tensor.
    #[must_use]
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Sets which tensors get other names, and which are left out.
    #[must_use]
    pub fn with_names(mut self, names: NameChanges) -> Self {
        self.names = names;
        self
    }

    /// Splits the output into files of at most `bytes` bytes of tensor data.
    #[must_use]
    pub fn with_max_shard_size(mut self, bytes: u64) -> Self {
        self.max_shard_size = Some(bytes);
        self
    }

    /// Makes an existing output an error: nothing is replaced.
    #[must_use]
    pub fn no_replace(mut self) -> Self {
        self.run = self.run.no_replace();
        self
    }

    /// Makes only part `part` of `of` of an output directory. Parts count from 1.
    #[must_use]
    pub fn with_part(mut self, part: usize, of: usize) -> Self {
        self.part = Some((part, of));
        self
    }

    /// Sets whether the output is a model that other programs run, or only its tensors.
    #[must_use]
    pub fn with_scope(mut self, scope: ModelScope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets whether the SHA-256 of each output file is computed.
    #[must_use]
    pub fn with_sha256(mut self, sha256: bool) -> Self {
        self.sha256 = sha256;
        self
    }

    /// Sets the adapters that are merged into the weights.
    ///
    /// ```no_run
    /// use anamnesis::{Adapter, ConvertOptions, TargetDtype};
    ///
    /// # fn main() -> anamnesis::Result<()> {
    /// let adapter = Adapter::open("my-lora")?.with_weight(0.8);
    /// let options = ConvertOptions::from(TargetDtype::BF16).with_adapters(vec![adapter]);
    /// anamnesis::parse("base")?.convert("merged", options)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_adapters(mut self, adapters: Vec<Adapter>) -> Self {
        self.adapters = adapters;
        self
    }

    /// Sets whether an unfinished directory is continued.
    #[must_use]
    pub fn with_resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// The files and directories that the options name.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let adapters = self.adapters.iter().map(|a| a.path().to_path_buf());
        let mut all: Vec<PathBuf> = adapters.collect();
        all.extend(self.files.iter().cloned().chain(self.encoding_files()));
        all
    }
}

#[cfg(feature = "lethe")]
impl From<Forget> for ConvertOptions {
    fn from(forget: Forget) -> Self {
        let run = RememberOptions::new(forget.scheme.dtype());
        let target = forget.scheme.container();
        Self { run, forget: Some(forget), ..Self::new(target) }
    }
}

#[cfg(feature = "lethe")]
impl From<ForgetScheme> for ConvertOptions {
    fn from(scheme: ForgetScheme) -> Self {
        Forget::from(scheme).into()
    }
}

#[cfg(feature = "lethe")]
impl From<crate::lethe::QuantScheme> for ConvertOptions {
    fn from(scheme: crate::lethe::QuantScheme) -> Self {
        ForgetScheme::from(scheme).into()
    }
}

impl From<RememberOptions> for ConvertOptions {
    fn from(run: RememberOptions) -> Self {
        Self::default().with_run(run).with_decode(true)
    }
}

impl From<&RememberOptions> for ConvertOptions {
    fn from(run: &RememberOptions) -> Self {
        run.clone().into()
    }
}

impl From<&ConvertOptions> for ConvertOptions {
    fn from(options: &ConvertOptions) -> Self {
        options.clone()
    }
}

impl From<TargetDtype> for ConvertOptions {
    fn from(to: TargetDtype) -> Self {
        RememberOptions::new(to).into()
    }
}

impl From<ConvertTarget> for ConvertOptions {
    fn from(target: ConvertTarget) -> Self {
        Self::new(target)
    }
}
