//! What a command is going to write: [`WriteRequest`], what is asked for, and [`PlannedOutput`],
//! what that makes of one input.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::args::RunArgs;
use super::input::{self, NamedModel};
use super::listing::most_first;
use super::outcome::{is_copied, kept_note, nothing_encoded};
use super::outputs::{OutputChoice, require_outside_cache};
use super::printed::ConversionReport;
use super::{CommandResult, way_out};
use crate::error::{counted, printable};
use crate::{
    AnamnesisError, Conversion, ConvertOptions, ConvertTarget, ModelScope, ParsedModel,
    QuantScheme, Report, Result, format_bytes,
};

/// How a command names its output and reports its work.
#[derive(Default)]
pub(super) struct OutputStyle<'a> {
    /// Suffix of the output's default name, such as `nf4`; `None`: the element type of its tensors,
    /// such as `bf16`.
    pub suffix: Option<&'a str>,
    /// Whether the user has said, or the command says, which element type the output has.
    pub asks_dtype: bool,
    /// The HTML page that is written on the error of encoding.
    pub html: Option<&'a Path>,
    /// The file that the types of tensors are saved in.
    pub plan: Option<&'a Path>,
    /// Whether the error of each encoded tensor is printed as CSV, and nothing else.
    pub csv: bool,
}

/// What is to be made of an input.
pub(super) struct WriteRequest<'a> {
    pub options: &'a ConvertOptions,
    pub args: &'a RunArgs,
    pub place: OutputChoice<'a>,
    pub style: &'a OutputStyle<'a>,
}

/// A planned conversion with the path of its output.
pub(super) struct PlannedOutput<'m> {
    pub conversion: Conversion<'m>,
    pub output: PathBuf,
    /// Name of the scheme that tensors are encoded to.
    scheme: Option<String>,
    /// What is to be noted besides the notes of the report.
    note: Option<String>,
}

impl WriteRequest<'_> {
    /// Plans the conversion of `input`.
    ///
    /// # Errors
    /// Those of [`ParsedModel::plan`], and `Unsupported` if nothing can be encoded or an option
    /// has no effect on this model.
    pub(super) fn plan<'m>(&self, input: &'m NamedModel) -> CommandResult<PlannedOutput<'m>> {
        let (args, model) = (self.args, &input.model);
        let options = self.full_options(model);
        let extension = options.target.extension();
        let keeps_blocks = options.carries_blocks(model);
        let scheme = options.forget.as_ref().map(|f| f.scheme.to_string());
        let planned = model.plan(options.clone());
        let conversion = planned.map_err(|error| way_out::of_plan(error, model, &options))?;
        if args.output.tokenizer_pre.is_some() && !conversion.is_whole_model() {
            let what = "--tokenizer-pre: the output is no whole model of a Hugging Face directory, so it has no pre-tokenizer of that name";
            return Err(AnamnesisError::usage(what).into());
        }
        let report = conversion.report();
        let encodes_nothing = report.encoded.is_empty() && !is_copied(report);
        if let Some(scheme) = scheme.as_ref().filter(|_| encodes_nothing) {
            return Err(nothing_encoded(scheme, report).into());
        }
        let suffix = self.style.suffix.map(str::to_owned);
        let suffix = suffix.unwrap_or_else(|| dtype_suffix(&conversion));
        let named = &input.named;
        let default = match conversion.is_directory() {
            true => input::output_directory(named, &suffix),
            false => input::output_file(named, &suffix, extension, keeps_blocks),
        };
        let default = match options.scope {
            ModelScope::ImageTower => input::with_prefix("mmproj-", &default),
            ModelScope::Prediction => input::with_prefix("mtp-", &default),
            _ => default,
        };
        let output = self.place.output(default, conversion.is_directory());
        require_outside_cache(&output)?;
        Ok(PlannedOutput {
            note: kept_note(conversion.report()).filter(|_| self.style.asks_dtype),
            conversion,
            output,
            scheme,
        })
    }

    /// The options of the conversion, with what the arguments and the output's name say.
    fn full_options(&self, model: &ParsedModel) -> ConvertOptions {
        let (mut options, args) = (self.options.clone(), self.args);
        options.skip_unsupported = args.select.skip_unsupported;
        options.strict = args.select.strict;
        options.max_shard_size = args.output.max_shard_size;
        options.part = args.part();
        options.resume = args.resume;
        options.sha256 = args.output.hashes();
        // Of a model that is encoded, they say which tensors are.
        let (include, exclude) = match &mut options.forget {
            Some(forget) => (&mut forget.include, &mut forget.exclude),
            None => (&mut options.include, &mut options.exclude),
        };
        include.clone_from(&args.select.include);
        exclude.clone_from(&args.select.exclude);
        let extension = options.target.extension();
        let named = self.place.path().and_then(Path::extension);
        options.single_file = named.is_some_and(|ending| ending.eq_ignore_ascii_case(extension))
            && args.output.max_shard_size.is_none()
            || args.output.is_stdout();
        options.scope = self.scope(model, &options);
        options.pre_tokenizer.clone_from(&args.output.tokenizer_pre);
        options
    }

    /// Whether the output is a whole model. A GGUF file becomes one where a directory is asked for;
    /// some of its tensors are none.
    fn scope(&self, model: &ParsedModel, options: &ConvertOptions) -> ModelScope {
        let select = &self.args.select;
        let is_some = !(select.include.is_empty() && select.exclude.is_empty());
        let is_directory = self.place.path().is_some() && !options.single_file;
        match () {
            () if options.scope != ModelScope::Auto => options.scope,
            () if self.args.output.tensors_only => ModelScope::Tensors,
            () if self.args.output.is_tower() => ModelScope::ImageTower,
            () if self.args.output.tower().is_some() && is_directory => ModelScope::Model,
            () if is_some || !is_directory || model.gguf().is_none() => ModelScope::Auto,
            () if options.target == ConvertTarget::Safetensors => ModelScope::Model,
            () => ModelScope::Auto,
        }
    }
}

impl PlannedOutput<'_> {
    /// `report` with the note of the plan.
    pub(super) fn with_note(&self, report: &Report) -> Report {
        let mut report = report.clone();
        report.notes.extend(self.note.clone());
        report
    }

    /// What `--json` prints: of a plan without `seconds`, else of the finished conversion.
    pub(super) fn json<'a>(
        &'a self,
        input: &NamedModel,
        report: &'a Report,
        seconds: Option<f64>,
    ) -> ConversionReport<'a> {
        let scheme = self.scheme.as_deref();
        ConversionReport::new(input, &self.conversion, &self.output, scheme, report, seconds)
    }

    /// Prints the plan: the tensors by what becomes of them, the output, its memory and the free
    /// space.
    pub(super) fn print(
        &self,
        input: &NamedModel,
        report: &Report,
        out: &mut impl Write,
    ) -> Result<()> {
        // Standard output is flushed at each line, and a plan may name a hundred thousand tensors.
        let mut buffered = BufWriter::new(out);
        let out = &mut buffered;
        writeln!(out, "{}", parsing_line(input, report))?;
        print_tensors(report, out)?;
        for note in &report.notes {
            writeln!(out, "Note:        {}", printable(note))?;
        }
        let files = self.conversion.paths(&self.output).len();
        let path = printable(&self.output.to_string_lossy());
        writeln!(
            out,
            "Output:      {path} ({}, files of weights: {files})",
            format_bytes(report.output_bytes)
        )?;
        let memory = format_bytes(self.conversion.peak_memory());
        writeln!(out, "Memory:      at most {memory}")?;
        let free = self.conversion.free_space(&self.output);
        let free = free.map_or("unknown".to_owned(), format_bytes);
        writeln!(out, "Free space:  {free}")?;
        Ok(out.flush()?)
    }
}

/// Prints the tensors of a plan by what becomes of them.
fn print_tensors(report: &Report, out: &mut impl Write) -> Result<()> {
    match report.encoded.len() {
        0 => {
            let (n, to) = (report.recovered(), &report.to);
            writeln!(out, "Decoded:     {} to {to}", counted(n, "tensor"))?;
        }
        n => writeln!(out, "Encoded:     {}", counted(n, "tensor"))?,
    }
    for tensor in &report.encoded {
        writeln!(out, "  {}  {}", printable(&tensor.name), tensor.scheme)?;
    }
    if report.merged > 0 {
        writeln!(out, "Merged:      {}", counted(report.merged, "tensor"))?;
    }
    if report.cast > 0 {
        writeln!(out, "Cast:        {}", counted(report.cast, "tensor"))?;
    }
    writeln!(out, "As they are: {}", counted(report.passthrough, "tensor"))?;
    for tensor in &report.kept {
        let (name, reason) = (printable(&tensor.name), printable(&tensor.reason));
        writeln!(out, "  {name}  {reason}")?;
    }
    writeln!(out, "Left out:    {}", counted(report.dropped.len(), "tensor"))?;
    Ok(())
}

/// The line that says what was found in the input.
pub(super) fn parsing_line(input: &NamedModel, report: &Report) -> String {
    let (n, schemes) = (input.model.tensors().len(), schemes(input, report));
    format!("Parsing...   {}, {schemes}", counted(n, "tensor"))
}

/// The schemes of a report: a single one as a phrase, several as lines with their counts.
fn schemes(input: &NamedModel, report: &Report) -> String {
    match report.schemes.as_slice() {
        [] if input.model.tensors().any(|t| t.dtype().is_ggml_block()) => {
            "GGUF, copied as it is".to_owned()
        }
        [] => plain_types(input),
        [only] => only.scheme.phrase(),
        several => {
            let each = several
                .iter()
                .map(|s| format!("\n{:>15} {}", s.tensors, s.scheme.phrase()));
            format!("{} schemes{}", several.len(), each.collect::<String>())
        }
    }
}

/// The element types of a model that is not quantized, that of the most bytes first.
fn plain_types(input: &NamedModel) -> String {
    let tensors = input.model.tensors();
    let types = most_first(tensors.map(|t| (t.dtype().to_string(), t.byte_len())));
    let types: Vec<String> = types.into_iter().map(|(dtype, _)| dtype).collect();
    match types.is_empty() {
        true => QuantScheme::Unquantized.phrase(),
        false => types.join(", "),
    }
}

/// End of the default name of an output that is not encoded: the element type that was asked for,
/// if a tensor has been decoded or cast to it, else the one that most bytes have.
fn dtype_suffix(conversion: &Conversion<'_>) -> String {
    let (report, mut bytes) = (conversion.report(), BTreeMap::new());
    for tensor in conversion.outputs() {
        *bytes.entry(tensor.dtype.to_string()).or_insert(0) += tensor.byte_len;
    }
    let to = report.to.to_string();
    let is_made = report.recovered() + report.cast > 0 && bytes.contains_key(&to);
    let most = bytes.into_iter().max_by_key(|&(_, bytes)| bytes);
    match most {
        Some((most, _)) => (if is_made { to } else { most }).to_lowercase(),
        // It has no tensors.
        None => "copy".to_owned(),
    }
}
