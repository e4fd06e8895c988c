//! Which tensors llama.cpp loads of an architecture, of which sizes, and which keys it needs. Whoever
//! writes a file that it cannot load notices when the original weights are gone, so every GGUF model is
//! compared with these tables before anything is written.
//!
//! A table is what `load_arch_tensors` and `load_arch_hparams` of the architecture do: a row is a call of
//! `create_tensor`, with the sizes in llama.cpp's order, the contiguous one first.
//!
//! Source: `src/models/*.cpp` and `src/llama-model.cpp` of llama.cpp
//! (<https://github.com/ggml-org/llama.cpp/tree/master/src/models>), as of llama-cpp-python 0.3.36.

mod attention;
mod compare;
mod dense;
mod drafts;
mod encoders;
mod experts;
mod feed_forward;
mod hybrid;
mod latent;
mod problem;
mod sizes;
#[cfg(test)]
mod tests;
mod towers;
mod whole;

pub(crate) use self::compare::problems;
pub(crate) use self::compare::problems_in;
pub(crate) use self::problem::GraphProblem;
use self::sizes::{Size, When};
pub(crate) use self::whole::is_whole_model;

/// The output, which is the embedding of many models.
pub(crate) const OUTPUT: &str = "output.weight";

/// What llama.cpp loads of an architecture.
pub(crate) struct Graph {
    /// Values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Keys that it needs, without the architecture's name.
    pub keys: &'static [(When, &'static [&'static str])],
    /// Sizes that it asserts to be equal.
    pub equal: &'static [(When, [Size; 2])],
    pub tensors: &'static [(When, &'static [&'static [Row]])],
}

impl Graph {
    /// Whether layers have queries.
    fn has_attention(&self) -> bool {
        let mut rows = self
            .tensors
            .iter()
            .flat_map(|(_, rows)| rows.iter())
            .flat_map(|rows| rows.iter());
        rows.any(|row| row.name.contains(".attn_q"))
    }
}

/// A tensor, or those of its name in all layers.
pub(crate) struct Row {
    /// Name; `{i}` is the layer.
    pub name: &'static str,
    pub sizes: &'static [Size],
    pub need: TensorNeed,
}

/// Whether a file must have a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorNeed {
    Required,
    /// As `TENSOR_NOT_REQUIRED` says.
    Optional,
    /// The file must have either this one or the other, and not both.
    Unless(&'static str),
}

/// Rows, one a line: `"name" [sizes];`, with `optional` or `unless "other"` in front of the semicolon.
macro_rules! rows {
    (@ need) => { $crate::families::engine::graphs::TensorNeed::Required };
    (@ need optional) => { $crate::families::engine::graphs::TensorNeed::Optional };
    (@ need unless $other:literal) => { $crate::families::engine::graphs::TensorNeed::Unless($other) };
    ($($name:literal [$($size:expr),*] $($need:ident $($other:literal)?)?;)*) => {
        &[$($crate::families::engine::graphs::Row {
            name: $name,
            sizes: &[$($size),*],
            need: $crate::families::engine::graphs::rows!(@ need $($need $($other)?)?),
        }),*]
    };
}

/// Tables: `"name" [keys] sizes { when => rows; }`; a bar divides the names of architectures that are
/// loaded alike.
macro_rules! graphs {
    ($($($name:literal)|+ [$($key:expr),*] $equal:ident { $($when:expr => $($rows:ident)+;)+ })*) => {
        pub(crate) const GRAPHS: &[$crate::families::engine::graphs::Graph] = &[$($crate::families::engine::graphs::Graph {
            names: &[$($name),+],
            keys: &[$($key),*],
            equal: $equal,
            tensors: &[$(($when, &[$($rows),+])),+],
        }),*];
    };
}
use {graphs, rows};

/// The table of the architecture `name`.
fn graph_of(name: &str) -> Option<&'static Graph> {
    let all = [
        dense::GRAPHS,
        experts::GRAPHS,
        latent::GRAPHS,
        hybrid::GRAPHS,
        encoders::GRAPHS,
        drafts::GRAPHS,
    ];
    all.into_iter()
        .flatten()
        .find(|graph| graph.names.contains(&name))
}

/// Whether llama.cpp's `architecture` loads the tensor `fused` of a layer in place of `parts`.
pub(crate) fn loads_instead(architecture: &str, (fused, parts): (&str, &[&str])) -> bool {
    let weight = |name: &str| format!("blk.{{i}}.{name}.weight");
    let fused = weight(fused);
    let rows = graph_of(architecture)
        .into_iter()
        .flat_map(|graph| graph.tensors)
        .flat_map(|(_, rows)| rows.iter().copied().flatten());
    let rows: Vec<&Row> = rows.collect();
    let is_instead = |part: &&str| {
        let mut rows = rows.iter().filter(|row| row.name == weight(part));
        rows.any(|row| matches!(row.need, TensorNeed::Unless(other) if other == fused))
    };
    parts.iter().any(is_instead)
}

/// Whether llama.cpp's `architecture` loads an output beside the embedding.
pub(crate) fn has_output(architecture: &str) -> bool {
    let rows = graph_of(architecture)
        .into_iter()
        .flat_map(|graph| graph.tensors)
        .flat_map(|(_, rows)| rows.iter().copied().flatten());
    rows.into_iter().any(|row| row.name == OUTPUT)
}
