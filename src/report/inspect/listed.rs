//! [`ListedTensor`]: what a listing says of each stored tensor.

use std::borrow::Cow;

use super::{product, roles};
use crate::model::Tensor;
use crate::remember::{Resolution, ResolvedItem};
use crate::{Dtype, ParsedModel, QuantScheme, TensorRole};

/// A stored tensor with what it is for.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct ListedTensor<'m> {
    /// Name, as stored.
    pub name: &'m str,
    /// Element type, as stored.
    pub dtype: Dtype,
    /// Shape as stored, outermost dimension first (GGUF files have it the other way round).
    pub shape: &'m [usize],
    /// Number of the model's values that the tensor holds, decoded if it has codes. 0 for scales
    /// and other tensors that are no part of the recovered model; `None` if the tensor cannot be
    /// decoded.
    pub parameters: Option<u64>,
    /// Bytes of the data.
    pub bytes: u64,
    /// What the tensor is for.
    #[serde(serialize_with = "as_text")]
    pub role: TensorRole,
    /// Scheme of the weight that the tensor is a part of, as a phrase in JSON; `None` if it is part
    /// of none.
    #[serde(serialize_with = "scheme_as_text")]
    pub scheme: Option<QuantScheme>,
    /// Name of the file that holds the data; `None` for a model from memory.
    pub file: Option<Cow<'m, str>>,
}

fn as_text<S: serde::Serializer>(role: &TensorRole, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(role)
}

fn scheme_as_text<S: serde::Serializer>(
    scheme: &Option<QuantScheme>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match scheme {
        Some(scheme) => serializer.collect_str(&scheme.column()),
        None => serializer.serialize_none(),
    }
}

impl ParsedModel {
    /// Lists the stored tensors in the order of the data, with role, scheme and number of values.
    /// Reads no tensor data except the small tensors in which some schemes describe themselves.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// for tensor in model.list() {
    ///     println!("{} {:?}: {} bytes", tensor.name, tensor.shape, tensor.bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn list(&self) -> Vec<ListedTensor<'_>> {
        self.list_resolved(&self.resolve())
    }

    /// [`list`](Self::list) of a model that has been resolved.
    pub(crate) fn list_resolved(&self, resolution: &Resolution<'_>) -> Vec<ListedTensor<'_>> {
        let roles = roles::of(self, resolution);
        let listed = |(t, role): (Tensor<'_>, TensorRole)| {
            let name = &*self.tensors[t.index].name;
            let file = self.sources[self.tensors[t.index].source].path();
            ListedTensor {
                name,
                dtype: t.dtype(),
                shape: &self.tensors[t.index].shape,
                parameters: Some(0),
                bytes: t.info().len,
                role,
                scheme: None,
                file: file
                    .and_then(std::path::Path::file_name)
                    .map(|name| name.to_string_lossy()),
            }
        };
        let mut all: Vec<_> = self.tensors().zip(roles).map(listed).collect();
        for item in &resolution.items {
            match item {
                ResolvedItem::Plain(t) => {
                    all[t.stored.index].parameters = Some(product(t.stored.shape()));
                }
                ResolvedItem::Group(group) => {
                    for (_, part) in &group.parts {
                        all[part.index].scheme = Some(group.scheme);
                    }
                    // Codes may lie in several tensors, and several weights in one: a weight counts
                    // with its first codes.
                    let codes = |part: &&(TensorRole, Tensor<'_>)| part.0 == TensorRole::Quantized;
                    let first = group.parts.iter().find(codes).or(group.parts.first());
                    if let Some((_, first)) = first {
                        let count = &mut all[first.index].parameters;
                        *count = count.map(|n| n.saturating_add(product(&group.shape)));
                    }
                }
            }
        }
        for problem in &resolution.problems {
            let tensor = &mut all[problem.tensor.index];
            (tensor.parameters, tensor.scheme) = (None, Some(problem.scheme));
        }
        all
    }
}
