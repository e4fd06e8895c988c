//! A language model and its tower of images (`mmproj`), two GGUF files, as one model.

use std::sync::OnceLock;

use super::directory::append;
use crate::model::gguf::{Gguf, GgufMetadataValue};
use crate::model::{GgufTower, NameIndex};
use crate::{AnamnesisError, ParsedModel, Result};

impl ParsedModel {
    /// The model with the tower and the projector that llama.cpp loads beside it (`mmproj`), both of
    /// GGUF: a conversion with `ModelScope::Model` writes the multimodal model of Hugging Face.
    ///
    /// # Errors
    /// `Usage` if the model is no language model in GGUF, or `tower` none for images; `Parse` if both
    /// have a tensor of the same name.
    pub fn with_mmproj(mut self, tower: Self) -> Result<Self> {
        let usage = |what: &str| Err(AnamnesisError::usage(format!("--mmproj FILE: {what}")));
        let (Some(own), Some(of_tower)) = (self.gguf.take(), tower.gguf.clone()) else {
            return usage(
                "it joins two GGUF files; MODEL is the language model, and FILE its tower",
            );
        };
        if !is_tower(&of_tower) {
            return usage("it is no tower, as --mmproj of llama.cpp's converter writes it");
        }
        if is_tower(&own) || self.tower.is_some() {
            return usage("MODEL is a tower itself; it is the language model, and FILE its tower");
        }
        let twice = tower.tensors().find(|t| self.tensor(t.name()).is_some());
        if let Some(twice) = twice {
            let what = format!("both files have a tensor `{}`", twice.name());
            return Err(AnamnesisError::parse(what));
        }
        let first_source = self.sources.len();
        append(&mut self, tower);
        (self.names, self.roles) = (NameIndex::default(), OnceLock::new());
        self.gguf = Some(own);
        self.tower = Some(GgufTower { metadata: of_tower.metadata, first_source });
        Ok(self)
    }
}

/// Whether a file is that of a tower.
fn is_tower(gguf: &Gguf) -> bool {
    let kind = gguf.metadata.get("general.type");
    let is_named = kind.as_ref().and_then(GgufMetadataValue::as_string) == Some("mmproj");
    is_named || gguf.architecture().as_deref() == Some("clip")
}
