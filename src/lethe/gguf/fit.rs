//! Whether an importance matrix is that of a model, and what the metadata of a GGUF file says of it.

use std::collections::HashSet;
use std::path::Path;

use super::is_float_type;
use crate::lethe::decision::{Candidate, Decision};
use crate::lethe::imatrix::{Imatrix, names_of_entries};
use crate::lethe::importance::dims_by_inputs;
use crate::lethe::llama_names::{is_token_embedding, llama_name};
use crate::model::gguf::GgufMetadataValue;
use crate::{AnamnesisError, Result};

/// Longest text that `llama-quantize` stores of a path, in bytes (`val_str` of
/// `llama_model_kv_override`, with its final zero).
const MAX_TEXT: usize = 127;

impl Imatrix {
    /// A note of the entries that fit no tensor of a model, and of the encoded tensors without an
    /// entry. Embeddings and the output layer have none in most matrices.
    ///
    /// # Errors
    /// `Unsupported` if no entry fits: the matrix at `path` is that of another model, and would be
    /// ignored.
    pub(in crate::lethe) fn note_of_fit(
        &self,
        path: &Path,
        candidates: &[Candidate<'_>],
        decisions: &[Decision],
    ) -> Result<Option<String>> {
        let (mut used, mut lacking) = (HashSet::new(), vec![]);
        for (candidate, decision) in candidates.iter().zip(decisions) {
            let weight = &candidate.weight;
            let llama = llama_name(weight.name).name;
            let dims = match decision {
                Decision::Encode { method, .. } => dims_by_inputs(weight, &**method),
                _ => weight.shape.to_vec(),
            };
            if let Ok(Some(_)) = self.of_tensor(weight.name, &dims) {
                let names = names_of_entries(weight.name, &llama).into_iter();
                used.extend(names.filter(|name| self.get(name).is_some()));
            } else if matches!(decision, Decision::Encode { label, .. } if !is_float_type(label))
                && !is_token_embedding(&llama)
                && llama != "output.weight"
            {
                lacking.push(weight.name);
            }
        }
        if used.is_empty() {
            let example = self.names().min().unwrap_or_default();
            let what = format!(
                "{} has no entry of the name and size of a tensor of this model: it is another model's, or has other names (e.g. `{example}`)",
                path.display()
            );
            return Err(AnamnesisError::unsupported("this importance matrix", what));
        }
        let unused = self.names().filter(|name| !used.contains(*name)).min();
        let entries = unused.map(|example| {
            let count = self.entries.len() - used.len();
            format!("{count} of {} entries fit no tensor, e.g. `{example}`", self.entries.len())
        });
        let tensors = lacking.first().map(|example| {
            let count = lacking.len();
            format!("{count} encoded tensors have no entry, e.g. `{example}`")
        });
        let all: Vec<String> = entries.into_iter().chain(tensors).collect();
        Ok((!all.is_empty()).then(|| format!("importance matrix: {}", all.join("; "))))
    }

    /// The keys that `llama-quantize` writes of the matrix at `path`.
    ///
    /// Source: [llama.cpp](https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/quantize.cpp)
    /// (`LLM_KV_QUANTIZE_IMATRIX_FILE` and the following).
    pub(in crate::lethe) fn gguf_keys(&self, path: &Path) -> Vec<(String, GgufMetadataValue)> {
        let text = |text: &str| {
            let end = (0..=MAX_TEXT.min(text.len()))
                .rev()
                .find(|&at| text.is_char_boundary(at));
            GgufMetadataValue::String(text[..end.unwrap_or(0)].into())
        };
        let number = |n: u64| GgufMetadataValue::U32(u32::try_from(n).unwrap_or(u32::MAX));
        let mut keys = vec![("file", text(&path.to_string_lossy()))];
        keys.extend(self.datasets.first().map(|name| ("dataset", text(name))));
        keys.push(("entries_count", number(self.entries.len() as u64)));
        let chunks = u64::try_from(self.chunks).unwrap_or(0);
        keys.extend((chunks > 0).then(|| ("chunks_count", number(chunks))));
        let named = |(key, value)| (format!("quantize.imatrix.{key}"), value);
        keys.into_iter().map(named).collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}
