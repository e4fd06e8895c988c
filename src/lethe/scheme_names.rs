//! Schemes by their names.

use std::str::FromStr;

use super::scheme::{ForgetScheme, decoded_only};
use super::schemes::SCHEMES;
use crate::config::nearest;
use crate::lethe::gguf::mixture::FileType;
use crate::{AnamnesisError, Result};

impl ForgetScheme {
    /// Name and description of every scheme, except the file types of GGUF.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        SCHEMES.iter().map(|row| (row.name, row.about))
    }

    /// Every name of a scheme or file type, in lower case: what names of encoded models end in.
    pub fn all_names() -> impl Iterator<Item = String> {
        let rows = SCHEMES
            .iter()
            .flat_map(|row| [row.name].into_iter().chain(row.aliases.iter().copied()));
        rows.chain(Self::all_gguf()).map(str::to_ascii_lowercase)
    }
}

impl FromStr for ForgetScheme {
    type Err = AnamnesisError;

    /// A scheme's name or one of its other names, `gguf:` with a file type of llama.cpp, or a file
    /// type alone. Case does not count, and `_` is the same as `-`.
    fn from_str(text: &str) -> Result<Self> {
        let name = text.to_ascii_lowercase().replace('_', "-");
        let row = SCHEMES
            .iter()
            .find(|row| row.name == name || row.aliases.contains(&name.as_str()));
        // No scheme has the name of a file type, so `gguf:` can be left out.
        let file_type = match text.split_once(':') {
            Some((container, name)) if container.eq_ignore_ascii_case("gguf") => name,
            _ => text,
        };
        let found = row.map(Self::of_row);
        let found = found.or_else(|| {
            let file_type = FileType::from_name(file_type)?;
            // `bf16` alone would be understood as a dtype or a target of `remember`.
            let is_clear = text.contains(':') || file_type.dtype.is_ggml_block();
            is_clear.then(|| Self::of_file_type(file_type))
        });
        found.ok_or_else(|| {
            if let Some(refusal) = decoded_only(file_type) {
                return refusal;
            }
            let schemes = SCHEMES
                .iter()
                .flat_map(|row| [row.name].into_iter().chain(row.aliases.iter().copied()));
            let near = nearest(file_type, schemes.chain(Self::all_gguf())).join(", ");
            let what = format!("no scheme is called so; near are {near}");
            AnamnesisError::unsupported(text, what)
        })
    }
}
