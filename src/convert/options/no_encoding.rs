//! Replaces `encoding` in a build without the feature `lethe`: there are no options for encoding.

use std::path::PathBuf;

use super::ConvertOptions;
use crate::Result;

impl ConvertOptions {
    /// Returns `false`: nothing is encoded.
    pub(crate) fn encodes(&self) -> bool {
        false
    }

    /// Returns the options unchanged: there are no schemes. The container that needs one is left out
    /// of this build, too.
    pub(in crate::convert) fn with_scheme(self, _scheme: &str) -> Result<Self> {
        Ok(self)
    }

    /// Returns `false`: nothing is encoded.
    pub(in crate::convert) fn makes_mlx(&self) -> bool {
        false
    }

    /// Returns `None`: there are no schemes.
    #[cfg(feature = "gguf")]
    pub(in crate::convert) fn gguf_file_type(&self) -> Option<u32> {
        None
    }

    /// Returns `None`: nothing is encoded.
    pub(in crate::convert) fn encoding_fingerprint(&self) -> Option<String> {
        None
    }

    /// Returns no files: no option names one.
    pub(in crate::convert) fn encoding_files(&self) -> impl Iterator<Item = PathBuf> {
        std::iter::empty()
    }
}
