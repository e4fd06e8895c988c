//! What the options of a conversion say of encoding.

use std::path::PathBuf;

use crate::Result;
use crate::convert::options::{ConvertOptions, RememberOptions};
use crate::lethe::{Forget, ForgetScheme};
use crate::source::FileState;

/// Whether the options ask for encoding.
pub(in crate::convert) fn is_asked_for(options: &ConvertOptions) -> bool {
    options.forget.is_some()
}

/// Sets the scheme of this name, and the element type that it encodes from.
///
/// # Errors
/// `Unsupported` if this build has no such scheme.
pub(in crate::convert) fn with_scheme(
    options: ConvertOptions,
    scheme: &str,
) -> Result<ConvertOptions> {
    let scheme: ForgetScheme = scheme.parse()?;
    let run = RememberOptions { to: scheme.dtype(), ..options.run };
    Ok(ConvertOptions { run, forget: Some(scheme.into()), ..options })
}

/// Whether the output is a model of MLX. One that is to be like another has the names of that.
#[cfg(feature = "models")]
pub(in crate::convert) fn is_mlx(options: &ConvertOptions) -> bool {
    let forget = options.forget.as_ref();
    forget.is_some_and(|forget| forget.scheme.is_mlx() && forget.like.is_none())
}

/// The number of the scheme among llama.cpp's file types; `None`: it has none, or nothing is
/// encoded.
#[cfg(feature = "gguf")]
pub(in crate::convert) fn file_type(options: &ConvertOptions) -> Option<u32> {
    options.forget.as_ref()?.scheme.file_type_number()
}

/// All encoding options as text, to compare two runs; `None` if nothing is encoded.
pub(in crate::convert) fn fingerprint(options: &ConvertOptions) -> Option<String> {
    // The options name files whose contents can change between runs, so their lengths and times
    // count.
    let state = |path: &PathBuf| {
        let state = FileState::of(&std::fs::metadata(path).ok()?);
        Some([u128::from(state.len), state.modified, state.changed])
    };
    let files =
        |forget: &Forget| [&forget.imatrix, &forget.like].map(|path| path.as_ref().and_then(state));
    options
        .forget
        .as_ref()
        .map(|forget| format!("{forget:?} {:?}", files(forget)))
}

/// The files and directories that the encoding options name.
pub(in crate::convert) fn files(options: &ConvertOptions) -> Vec<PathBuf> {
    let named = |forget: &Forget| [forget.imatrix.clone(), forget.like.clone()];
    let named = options.forget.iter().flat_map(named);
    named.flatten().collect()
}
