//! Opens the input, which is a path or the name of a model in Ollama's store, and derives the
//! output's name from it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::args::{FileArgs, LimitArgs};
use crate::hooks::NamedInput;
use crate::{ParseLimits, ParsedModel, Result};

/// A parsed model with the path that its output is named after.
pub(super) struct NamedModel {
    pub model: ParsedModel,
    /// Path of the input. For a model in Ollama's store, a file name in the current directory: the
    /// blobs of the store are named by their hash.
    pub named: PathBuf,
}

/// Opens the model that the arguments name within `limits`, restricted to the tensors below
/// `--root`.
///
/// # Errors
/// The errors of [`parse`](crate::parse()), or `Parse` if there is nothing below the root.
pub(super) fn open(args: &FileArgs, limits: &LimitArgs) -> Result<NamedModel> {
    open_below(&args.file, args.root.as_deref(), limits)
}

/// Opens the model at `path`, restricted to the tensors below `root`.
///
/// # Errors
/// As [`open`].
pub(super) fn open_below(
    path: &Path,
    root: Option<&str>,
    limits: &LimitArgs,
) -> Result<NamedModel> {
    let NamedModel { model, named } = open_file(path, &limits.limits())?;
    let model = match root {
        Some(root) => model.with_root(root)?,
        None => model,
    };
    Ok(NamedModel { model, named })
}

/// Opens the model at `path`, which may be the name of one in Ollama's store, within `limits`.
///
/// # Errors
/// The errors of [`parse`](crate::parse()).
pub(super) fn open_path(path: &Path, limits: &LimitArgs) -> Result<ParsedModel> {
    Ok(open_file(path, &limits.limits())?.model)
}

/// Opens the model at `path` as [`open_path`] does, also a directory without weights.
///
/// # Errors
/// The errors of [`parse`](crate::parse()).
pub(super) fn open_with_or_without_weights(path: &Path, limits: &LimitArgs) -> Result<NamedModel> {
    let input = NamedInput::find(path)?;
    let limits = limits.limits();
    let model = match input.parse_without_weights(&limits)? {
        Some(model) => model,
        None => input.parse(&limits)?,
    };
    Ok(NamedModel { model, named: input.named })
}

fn open_file(path: &Path, limits: &ParseLimits) -> Result<NamedModel> {
    let input = NamedInput::find(path)?;
    Ok(NamedModel { model: input.parse(limits)?, named: input.named })
}

/// Default output directory: `dir/NAME-BF16` for the input `dir/NAME` or `dir/NAME-FP8`, and the
/// suffix `bf16`.
pub(super) fn output_directory(input: &Path, suffix: &str) -> PathBuf {
    let better = canonical_name(input);
    let path = better.as_ref().map_or(input, |name| &name.path);
    let name = match better.as_ref().is_some_and(|name| name.is_of_directory) {
        true => path.file_name(),
        false => path.file_stem(),
    };
    let mut name = without_precision(name.unwrap_or_default());
    name.push(format!("-{}", suffix.to_uppercase()));
    path.with_file_name(name)
}

/// The path that names a model better than the path the user gave.
struct CanonicalName {
    path: PathBuf,
    /// Whether it names a directory, whose name has no extension.
    is_of_directory: bool,
}

/// A better name for the input at `input`; `None` for a file outside the Hugging Face cache.
///
/// A directory without a name, such as `.`, is resolved to its real one. For a directory in the
/// Hugging Face cache, which is named by its hash, it is the model's name in the current directory,
/// and for a file there its own: outputs do not belong into the cache.
fn canonical_name(input: &Path) -> Option<CanonicalName> {
    let full = std::fs::canonicalize(input).ok()?;
    let is_of_directory = full.is_dir();
    let cached = full
        .components()
        .rev()
        .find_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"));
    let path = match cached.and_then(|model| model.rsplit("--").next()) {
        Some(model) if is_of_directory => PathBuf::from(model),
        // The link has the file's name; what it links to is named by its hash.
        Some(_) => PathBuf::from(input.file_name()?),
        None if !is_of_directory => return None,
        None if input.file_name().is_some() => input.to_path_buf(),
        None => full,
    };
    Some(CanonicalName { path, is_of_directory })
}

/// Endings of file names that name a precision, besides the names of schemes.
const PRECISIONS: &[&str] = &[
    "bf16", "f16", "f32", "fp16", "fp32", "gguf", "gptq4", "gptq8", "bnb", "4bit", "8bit", "q6_k_l",
];

/// `stem` without the ending that names the precision of the input, which is not the output's. Of
/// several endings the longest counts. A name that is nothing else stays. The rest of the name need
/// not be Unicode.
fn without_precision(stem: &OsStr) -> OsString {
    let bytes = stem.as_encoded_bytes();
    let cut = |ending: &str| {
        let rest = bytes.len().checked_sub(ending.len() + 1)?;
        let (before, last) = (bytes.get(..=rest)?, &bytes[rest + 1..]);
        let has_mark = matches!(before.last(), Some(b'-' | b'_' | b'.'));
        (rest > 0 && has_mark && last.eq_ignore_ascii_case(ending.as_bytes())).then_some(rest)
    };
    let schemes = crate::ForgetScheme::all_names();
    let named = schemes.filter_map(|name| cut(&name).or_else(|| cut(&name.replace('-', "_"))));
    let shortest = named
        .chain(PRECISIONS.iter().filter_map(|name| cut(name)))
        .min();
    beginning_of(stem, shortest.unwrap_or(bytes.len()))
}

/// The first `len` bytes of a name.
#[cfg(unix)]
fn beginning_of(name: &OsStr, len: usize) -> OsString {
    use std::os::unix::ffi::OsStrExt;

    let bytes = name.as_bytes();
    OsStr::from_bytes(&bytes[..len.min(bytes.len())]).to_owned()
}

/// The first `len` bytes of a name; all of one that is not Unicode.
#[cfg(not(unix))]
fn beginning_of(name: &OsStr, len: usize) -> OsString {
    let text = name.to_str().and_then(|text| text.get(..len));
    text.map_or_else(|| name.to_owned(), OsString::from)
}

/// Default output file: `dir/model-bf16.gguf` for the input `dir/model-fp8.safetensors`, the suffix
/// `bf16` and the extension `gguf`. The number in the name of a split model's first file is
/// removed.
///
/// `keep` keeps the name of the quantization, for an output that is quantized in the same way.
pub(super) fn output_file(input: &Path, suffix: &str, extension: &str, keep: bool) -> PathBuf {
    let better = canonical_name(input);
    let path = better.as_ref().map_or(input, |name| &name.path);
    // A dot in the name of a directory, such as `Llama-3.1`, does not begin an extension.
    let stem = match better.as_ref().is_some_and(|name| name.is_of_directory) {
        true => path.file_name(),
        false => path.file_stem(),
    };
    let stem = stem.unwrap_or_default();
    let number = stem
        .as_encoded_bytes()
        .windows(FIRST_SHARD.len())
        .position(|at| at == FIRST_SHARD);
    let stem = match number {
        Some(at) => beginning_of(stem, at),
        None => stem.to_owned(),
    };
    let mut name = if keep { stem } else { without_precision(&stem) };
    name.push(format!("-{suffix}.{extension}"));
    path.with_file_name(name)
}

/// The default output file of a part of a model whose own is `output`, as llama.cpp's converter
/// calls it.
pub(super) fn with_prefix(prefix: &str, output: &Path) -> PathBuf {
    let mut name = OsString::from(prefix);
    name.push(output.file_name().unwrap_or_default());
    output.with_file_name(name)
}

/// What the name of the first file of a split model has behind the model's name.
const FIRST_SHARD: &[u8] = b"-00001-of-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_names() {
        let derive = |name: &str| {
            output_file(Path::new(name), "bf16", "safetensors", false)
                .to_string_lossy()
                .into_owned()
        };
        assert_eq!(derive("a/model-fp8.safetensors"), "a/model-bf16.safetensors");
        assert_eq!(derive("Llama-3-GPTQ-Int4.safetensors"), "Llama-3-bf16.safetensors");
        assert_eq!(derive("model.safetensors"), "model-bf16.safetensors");
        assert_eq!(derive("fp8.safetensors"), "fp8-bf16.safetensors");
        assert_eq!(derive("model-bf16.safetensors"), "model-bf16.safetensors");
        assert_eq!(derive("m_fp8_block.safetensors"), "m-bf16.safetensors");
        assert_eq!(derive("m-FP8-Fine-Grained.safetensors"), "m-bf16.safetensors");
        assert_eq!(derive("m-mlx-4bit.safetensors"), "m-bf16.safetensors");
        assert_eq!(derive("gemma-3-4b-it.safetensors"), "gemma-3-4b-it-bf16.safetensors");
        assert_eq!(derive("Qwen3-8B-Q4_K_M.gguf"), "Qwen3-8B-bf16.safetensors");
        assert_eq!(derive("big-IQ2_XXS-00001-of-00003.gguf"), "big-bf16.safetensors");
    }
}
