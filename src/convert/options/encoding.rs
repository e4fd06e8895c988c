//! What the options of a conversion say of encoding.

use std::path::PathBuf;

use super::{ConvertOptions, RememberOptions};
use crate::Result;
use crate::lethe::{Forget, ForgetScheme};
use crate::source::FileState;

impl ConvertOptions {
    /// Whether tensors are encoded.
    pub(crate) fn encodes(&self) -> bool {
        self.forget.is_some()
    }

    /// Sets the scheme of this name, and the element type that it encodes from.
    ///
    /// # Errors
    /// `Unsupported` if this build has no such scheme.
    pub(in crate::convert) fn with_scheme(self, scheme: &str) -> Result<Self> {
        let scheme: ForgetScheme = scheme.parse()?;
        let run = RememberOptions { to: scheme.dtype(), ..self.run };
        Ok(Self { run, forget: Some(scheme.into()), ..self })
    }

    /// Whether the output is a model of MLX. One that is to be like another has the names of that.
    pub(in crate::convert) fn makes_mlx(&self) -> bool {
        let forget = self.forget.as_ref();
        forget.is_some_and(|forget| forget.scheme.is_mlx() && forget.like.is_none())
    }

    /// The number of the scheme among llama.cpp's file types; `None`: it has none, or nothing is
    /// encoded.
    #[cfg(feature = "gguf")]
    pub(in crate::convert) fn gguf_file_type(&self) -> Option<u32> {
        self.forget.as_ref()?.scheme.file_type_number()
    }

    /// All encoding options as text, to compare two runs; `None` if nothing is encoded.
    pub(in crate::convert) fn encoding_fingerprint(&self) -> Option<String> {
        // The options name files whose contents can change between runs, so their lengths and times
        // count.
        let state = |path: &PathBuf| {
            let state = FileState::of(&std::fs::metadata(path).ok()?);
            Some([u128::from(state.len), state.modified, state.changed])
        };
        let files = |forget: &Forget| {
            [&forget.imatrix, &forget.like].map(|path| path.as_ref().and_then(state))
        };
        let forget = self.forget.as_ref();
        forget.map(|forget| format!("{forget:?} {:?}", files(forget)))
    }

    /// The files and directories that the encoding options name.
    pub(in crate::convert) fn encoding_files(&self) -> impl Iterator<Item = PathBuf> {
        let named = |forget: &Forget| [forget.imatrix.clone(), forget.like.clone()];
        self.forget.iter().flat_map(named).flatten()
    }
}
