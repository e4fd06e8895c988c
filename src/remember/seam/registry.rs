//! All schemes of the build, and what a tensor or a file of some name is to any of them.

use std::collections::{HashMap, HashSet};

use crate::config::QuantMethod;
use crate::model::ParsedModel;
use crate::remember::seam::identity::{NamePattern, Sibling};
use crate::remember::seam::{Algorithm, MethodFacts, Scheme, StatedCodes, TensorRole};

/// Last parts of the names of tensors that hold scales or zero points of activations or of the KV
/// cache, behind a dot or an underscore (`X.input_scale`, `experts.gate_up_proj_input_scale`).
/// These are the names that several producers use;
/// [`Identity::activations`](super::Identity::activations) has those of one.
const SHARED_ACTIVATIONS: &[&str] = &[
    "input_scale",
    "activation_scale",
    "input_zero_point",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "k_cache_scale",
    "v_cache_scale",
    "prob_output_scale",
];

/// Ends of the names of weights in any library. Codes of a scheme may have others, which its
/// [`Identity::codes`](super::Identity::codes) lists.
///
/// Stacked experts are parameters of their module: transformers calls them `gate_up_proj` and
/// `down_proj`, vLLM `w13_weight` and `w2_weight`.
const WEIGHTS: &[&str] = &[".weight", "_proj", ".w13_weight", ".w2_weight"];

/// A scheme, with what its answers outweigh.
pub(crate) struct Candidate {
    pub scheme: &'static dyn Scheme,
    /// The scheme's own bit in such sets.
    bit: u64,
    /// The schemes that it is over, directly or by one between.
    beaten: u64,
}

impl Candidate {
    /// Whether the claims of `other` fall where this scheme answers.
    pub(crate) fn is_over(&self, other: &Self) -> bool {
        self.beaten & other.bit != 0
    }
}

/// The schemes, with the names of all of them put together.
pub(crate) struct Registry {
    pub schemes: &'static [&'static dyn Scheme],
    candidates: Vec<Candidate>,
    companions: Vec<(NamePattern, TensorRole)>,
    optional: Vec<Sibling>,
    activations: Vec<&'static str>,
    markers: Vec<NamePattern>,
    /// Names of codes that are called a weight in no library.
    codes: Vec<&'static str>,
}

impl Registry {
    pub(crate) fn new(schemes: &'static [&'static dyn Scheme]) -> Self {
        let identities = || schemes.iter().map(|scheme| scheme.identity());
        Self {
            schemes,
            candidates: candidates(schemes),
            companions: distinct(identities().flat_map(|i| i.companions)),
            optional: distinct(identities().flat_map(|i| i.optional)),
            activations: distinct(
                SHARED_ACTIVATIONS
                    .iter()
                    .chain(identities().flat_map(|i| i.activations)),
            ),
            markers: distinct(identities().flat_map(|i| i.markers)),
            codes: distinct(identities().flat_map(|i| i.codes)),
        }
    }

    /// The scheme whose container `model` comes from, if a container settles the scheme.
    pub(crate) fn owner(&self, model: &ParsedModel) -> Option<&'static dyn Scheme> {
        self.schemes.iter().copied().find(|scheme| {
            scheme
                .identity()
                .container
                .is_some_and(|is_its| is_its(model))
        })
    }

    /// The schemes that are asked of each tensor of `model`. A container's own scheme reads what only
    /// this container stores, so it is not offered tensors of others.
    pub(crate) fn candidates(&self, model: &ParsedModel) -> Vec<&Candidate> {
        let owner = self.owner(model).map(|owner| owner.identity().name);
        let is_asked = |candidate: &&Candidate| match owner {
            Some(owner) => candidate.scheme.identity().name == owner,
            None => candidate.scheme.identity().container.is_none(),
        };
        self.candidates.iter().filter(is_asked).collect()
    }

    /// Whether some scheme is over itself, through others.
    #[cfg(test)]
    pub(crate) fn has_circle(&self) -> bool {
        self.candidates.iter().any(|c| c.is_over(c))
    }

    /// What `method` says of every weight.
    pub(crate) fn facts(&self, method: &QuantMethod) -> Option<&'static MethodFacts> {
        let mut facts = self.schemes.iter().flat_map(|scheme| scheme.methods());
        facts.find(|facts| facts.method == method)
    }

    /// What a config says of codes with the word `name`.
    pub(crate) fn word(&self, name: &str) -> Option<StatedCodes> {
        let mut words = self
            .schemes
            .iter()
            .flat_map(|scheme| scheme.dialect().words);
        words
            .find(|(word, _)| *word == name)
            .map(|(_, codes)| *codes)
    }

    /// The algorithm that `name` is, or begins with: the longest one.
    pub(crate) fn algorithm(&self, name: &str) -> Option<&'static Algorithm> {
        let all = self
            .schemes
            .iter()
            .flat_map(|scheme| scheme.dialect().algorithms);
        let is_same = |row: &&Algorithm| {
            let rest = name.strip_prefix(row.0);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        all.filter(is_same).max_by_key(|row| row.0.len())
    }

    /// Whether some scheme decodes, or refuses tensor by tensor, what configs call `method`.
    pub(crate) fn knows(&self, method: &QuantMethod) -> bool {
        self.schemes
            .iter()
            .any(|scheme| scheme.identity().methods.contains(method))
    }

    /// The role of a tensor that means nothing without a quantized weight; `None` for all other
    /// names.
    pub(crate) fn companion(&self, name: &str) -> Option<TensorRole> {
        self.companions
            .iter()
            .find(|(pattern, _)| pattern.fits(name))
            .map(|&(_, role)| role)
    }

    /// The role of a tensor of this name where the config says that the weight beside it is quantized.
    pub(crate) fn companion_if_quantized(&self, name: &str) -> Option<TensorRole> {
        let mut companions = self.companions.iter();
        companions.find_map(|&(pattern, role)| match pattern {
            NamePattern::EndsIfQuantized(end) => name.ends_with(end).then_some(role),
            _ => None,
        })
    }

    /// Names of the companions that the weight called `weight` may lack.
    pub(crate) fn optional<'a>(&'a self, weight: &'a str) -> impl Iterator<Item = String> + 'a {
        self.optional.iter().map(|sibling| sibling.beside(weight))
    }

    /// Whether a tensor of this name holds a scale or zero points of activations or of the KV
    /// cache.
    pub(crate) fn is_activation(&self, name: &str) -> bool {
        self.activations.iter().any(|end| {
            // A whole part of the name has to match, or `risk_scale` would pass for a `k_scale`.
            let rest = name.strip_suffix(end);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['.', '_']))
        })
    }

    /// Whether a tensor of this name says something of its file and is no part of the model.
    pub(crate) fn is_marker(&self, name: &str) -> bool {
        self.markers.iter().any(|pattern| pattern.fits(name))
    }

    /// Whether a tensor of this name is a weight or the codes of one.
    pub(crate) fn is_weight(&self, name: &str) -> bool {
        name == "weight" || WEIGHTS.iter().any(|end| name.ends_with(end)) || self.is_codes(name)
    }

    /// Whether a tensor of this name is the codes of a weight, and called what no weight is called.
    pub(crate) fn is_codes(&self, name: &str) -> bool {
        self.codes.iter().any(|end| name.ends_with(end))
    }

    /// What the names of all parts of a weight begin with, whose codes are called `codes`: `X.` of
    /// `X.weight` and `X.qweight`, `experts.gate_up_proj` of `experts.gate_up_proj_blocks`.
    pub(crate) fn stem<'n>(&self, codes: &'n str) -> &'n str {
        let ends = || std::iter::once(".weight").chain(self.codes.iter().copied());
        let mut stem = codes;
        let mut last = "";
        // `X.weight._data._data` and `X.weight_packed` have several ends.
        while let Some((rest, end)) = ends().find_map(|end| Some((stem.strip_suffix(end)?, end))) {
            (stem, last) = (rest, end);
        }
        &codes[..stem.len() + usize::from(last.starts_with('.'))]
    }

    /// The role of a tensor that is in no output.
    pub(crate) fn role_of_dropped(&self, name: &str) -> TensorRole {
        // A name can be in several lists. Markers come first, as in `Leftovers::sort`.
        if self.is_marker(name) {
            TensorRole::QuantState
        } else {
            self.companion(name).unwrap_or(TensorRole::Activation)
        }
    }

    /// Keys of a file's metadata that describe the quantization of its tensors.
    pub(crate) fn descriptions(&self, metadata: &HashMap<String, String>) -> HashSet<String> {
        let schemes = self.schemes.iter();
        schemes
            .flat_map(|scheme| scheme.descriptions(metadata))
            .collect()
    }

    /// Whether a file of this name describes a quantization and nothing else.
    pub(crate) fn is_sidecar(&self, file: &str) -> bool {
        let mut sidecars = self
            .schemes
            .iter()
            .flat_map(|scheme| scheme.identity().sidecars);
        sidecars.any(|pattern| pattern.fits(file))
    }
}

/// `schemes`, each with those that it is over, and those that these are over.
fn candidates(schemes: &'static [&'static dyn Scheme]) -> Vec<Candidate> {
    let bit_of = |name: &str| {
        let at = schemes.iter().position(|s| s.identity().name == name);
        at.map_or(0, |at| 1_u64 << at)
    };
    let beaten_by = |names: &[&str]| names.iter().fold(0, |set, name| set | bit_of(name));
    let mut beaten: Vec<u64> = schemes
        .iter()
        .map(|s| beaten_by(s.identity().over))
        .collect();
    // Warshall's closure: after step `via`, paths through the first `via` schemes are in.
    for via in 0..beaten.len() {
        for from in 0..beaten.len() {
            if beaten[from] >> via & 1 == 1 {
                beaten[from] |= beaten[via];
            }
        }
    }
    let with_set = |(at, (&scheme, beaten))| Candidate { scheme, bit: 1_u64 << at, beaten };
    schemes
        .iter()
        .zip(beaten)
        .enumerate()
        .map(with_set)
        .collect()
}

/// Whether models have parameters of this name that scale the heads of their attention.
pub(crate) fn may_be_of_heads(name: &str) -> bool {
    ["q_scale", "k_scale", "v_scale", "output_scale"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// `items` without repetitions: every leftover tensor of a model is compared with all of them.
fn distinct<'a, T: Copy + PartialEq + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut found = Vec::new();
    for &item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::remember::REGISTRY;
    use crate::remember::seam::TensorRole;

    #[test]
    fn names() {
        let is_activation = |name| REGISTRY.is_activation(name);
        assert!(is_activation("model.layers.0.self_attn.k_scale"));
        assert!(is_activation("experts.gate_up_proj_input_scale"));
        assert!(!is_activation("logit_scale"));
        assert!(!is_activation("model.task_scale"));
        let companion = |name| REGISTRY.companion(name);
        assert_eq!(companion("l.0.weight_scale"), Some(TensorRole::Scale));
        assert_eq!(companion("l.0.norm.scale"), None);
    }
}
