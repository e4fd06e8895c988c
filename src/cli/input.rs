//! Opens the input, which is a path or the name of a model in Ollama's store, and derives the output's name from it.

use std::path::{Path, PathBuf};

use super::args::{FileArgs, LimitArgs};
use crate::{ParseLimits, ParsedModel, Result};

/// A parsed model with the path that its output is named after.
pub(super) struct NamedModel {
    pub model: ParsedModel,
    /// Path of the input. For a model in Ollama's store, a file name in the current directory: the blobs of the store are
    /// named by their hash.
    pub named: PathBuf,
}

/// Opens the model that the arguments name within `limits`, restricted to the tensors below `--root`.
///
/// # Errors
/// The errors of [`parse`](crate::parse()), or `Parse` if there is nothing below the root.
pub(super) fn open(args: &FileArgs, limits: &LimitArgs) -> Result<NamedModel> {
    let NamedModel { model, named } = open_file(&args.file, &limits.limits())?;
    let model = match &args.root {
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

fn open_file(path: &Path, limits: &ParseLimits) -> Result<NamedModel> {
    let text = path.to_string_lossy();
    if !text.starts_with("ollama:") {
        return Ok(NamedModel {
            model: crate::parse_with_limits(path, limits)?,
            named: path.to_path_buf(),
        });
    }
    let file = crate::resolve_ollama_model(&text)?;
    let named = PathBuf::from(format!(
        "{}.gguf",
        crate::containers::parse::ollama::file_stem(&text)
    ));
    Ok(NamedModel {
        model: crate::parse_with_limits(file, limits)?,
        named,
    })
}

/// Default output directory: `dir/NAME-BF16` for the input `dir/NAME` or `dir/NAME-FP8`, and the suffix `bf16`.
pub(super) fn output_directory(input: &Path, suffix: &str) -> PathBuf {
    let whole = canonical_name(input);
    let input = whole.as_deref().unwrap_or(input);
    let name = if whole.is_some() {
        input.file_name()
    } else {
        input.file_stem()
    };
    let name = name.unwrap_or_default().to_string_lossy();
    let name = without_precision(&name);
    input.with_file_name(format!("{name}-{}", suffix.to_uppercase()))
}

/// The path that names a model better than the path the user gave; `None` for a file outside the Hugging Face cache.
///
/// A directory is resolved to its real name, because `.` has none. For a path in the Hugging Face cache, whose directories are
/// named by their hash, it is the model's name in the current directory: outputs do not belong into the cache.
fn canonical_name(input: &Path) -> Option<PathBuf> {
    let input = std::fs::canonicalize(input).ok()?;
    let cached = input
        .components()
        .rev()
        .find_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"));
    match cached.and_then(|model| model.rsplit("--").next()) {
        Some(model) => Some(PathBuf::from(model)),
        None => input.is_dir().then_some(input),
    }
}

/// Endings of file names that name a precision, besides the names of schemes.
const PRECISIONS: &[&str] = &[
    "bf16", "f16", "f32", "fp16", "fp32", "gguf", "gptq4", "gptq8", "bnb", "4bit", "8bit", "q6_k_l",
];

/// `stem` without the ending that names the precision of the input, which is not the output's. Of several endings the longest
/// counts. A name that is nothing else stays.
fn without_precision(stem: &str) -> &str {
    let lower = stem.to_ascii_lowercase();
    let cut = |ending: &str| {
        let rest = lower.strip_suffix(ending)?.strip_suffix(['-', '_', '.'])?;
        (!rest.is_empty()).then_some(rest.len())
    };
    let schemes = crate::ForgetScheme::all_names();
    let named = schemes.filter_map(|name| cut(&name).or_else(|| cut(&name.replace('-', "_"))));
    let shortest = named
        .chain(PRECISIONS.iter().filter_map(|name| cut(name)))
        .min();
    // Lower case of ASCII letters has the same length.
    &stem[..shortest.unwrap_or(stem.len())]
}

/// Default output file: `dir/model-bf16.gguf` for the input `dir/model-fp8.safetensors`, the suffix `bf16` and the extension
/// `gguf`. The number in the name of a split model's first file is removed.
///
/// `keep` keeps the name of the quantization, for an output that is quantized in the same way.
pub(super) fn output_file(input: &Path, suffix: &str, extension: &str, keep: bool) -> PathBuf {
    // A dot in the name of a directory, such as `Llama-3.1`, does not begin an extension.
    let whole = canonical_name(input).filter(|_| input.is_dir());
    let stem = whole
        .as_deref()
        .map_or_else(|| input.file_stem(), Path::file_name);
    let stem = stem.unwrap_or_default().to_string_lossy();
    let stem = stem
        .split_once("-00001-of-")
        .map_or(&*stem, |(stem, _)| stem);
    let stem = if keep { stem } else { without_precision(stem) };
    whole
        .as_deref()
        .unwrap_or(input)
        .with_file_name(format!("{stem}-{suffix}.{extension}"))
}

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
        assert_eq!(
            derive("a/model-fp8.safetensors"),
            "a/model-bf16.safetensors"
        );
        assert_eq!(
            derive("Llama-3-GPTQ-Int4.safetensors"),
            "Llama-3-bf16.safetensors"
        );
        assert_eq!(derive("model.safetensors"), "model-bf16.safetensors");
        assert_eq!(derive("fp8.safetensors"), "fp8-bf16.safetensors");
        assert_eq!(derive("model-bf16.safetensors"), "model-bf16.safetensors");
        assert_eq!(derive("m_fp8_block.safetensors"), "m-bf16.safetensors");
        assert_eq!(
            derive("m-FP8-Fine-Grained.safetensors"),
            "m-bf16.safetensors"
        );
        assert_eq!(derive("m-mlx-4bit.safetensors"), "m-bf16.safetensors");
        assert_eq!(
            derive("gemma-3-4b-it.safetensors"),
            "gemma-3-4b-it-bf16.safetensors"
        );
        assert_eq!(derive("Qwen3-8B-Q4_K_M.gguf"), "Qwen3-8B-bf16.safetensors");
        assert_eq!(
            derive("big-IQ2_XXS-00001-of-00003.gguf"),
            "big-bf16.safetensors"
        );
    }
}
