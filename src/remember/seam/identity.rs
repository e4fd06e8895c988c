//! What a scheme says of itself: the names that it gives to tensors and files.

use crate::ParsedModel;
use crate::config::QuantMethod;
use crate::remember::seam::TensorRole;

/// What belongs to one scheme and to no code outside its file. Schemes that write the same name
/// each list it.
///
/// No field has a default: whoever writes a scheme decides about each.
pub(crate) struct Identity {
    /// Name in listings of tensors that cannot be claimed.
    pub name: &'static str,
    /// Names of the schemes whose claims fall where this one claims or refuses a tensor, because it
    /// tells more exactly what the tensor is. What those schemes are over falls, too.
    pub over: &'static [&'static str],
    /// Values of `quant_method` in configs of such models. A model of a method that no scheme lists
    /// is refused.
    pub methods: &'static [QuantMethod],
    /// Endings of the names of stored codes, where these are not called `weight`. In a quantized
    /// model, an integer tensor of such a name that nobody claims is an error.
    pub codes: &'static [&'static str],
    /// Tensors that mean nothing without a quantized weight. One that nobody claims is an error.
    pub companions: &'static [(NamePattern, TensorRole)],
    /// Companions that a weight may lack.
    pub optional: &'static [Sibling],
    /// Scales and zero points of activations or of the KV cache: whole last parts of a name, or
    /// what follows an underscore. In a quantized model they are dropped.
    pub activations: &'static [&'static str],
    /// Tensors without a value that say something of the file. They are dropped.
    pub markers: &'static [NamePattern],
    /// Files of a model's directory that describe its quantization and nothing else. No output has
    /// them.
    pub sidecars: &'static [NamePattern],
    /// Tells the container whose tensors are all this scheme's. Then no other scheme is asked, and
    /// this one is asked of no other container. `None` for schemes that are recognised by their
    /// tensors.
    pub container: Option<fn(&ParsedModel) -> bool>,
}

/// Names of tensors or files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamePattern {
    /// This name.
    Is(&'static str),
    /// Every name with this end.
    Ends(&'static str),
    /// Every name with this somewhere in it.
    Contains(&'static str),
    /// Every name with this end, but only where the config says that the weight beside it is
    /// quantized: other models have parameters of such names.
    EndsIfQuantized(&'static str),
}

impl NamePattern {
    pub(crate) fn fits(self, name: &str) -> bool {
        match self {
            Self::Is(whole) => name == whole,
            Self::Ends(end) => name.ends_with(end),
            Self::Contains(part) => name.contains(part),
            Self::EndsIfQuantized(_) => false,
        }
    }
}

/// Name of a companion, made from the name of its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sibling {
    /// Takes the place of `weight` as the last part: `g_idx` beside `X.weight` is `X.g_idx`.
    OfModule(&'static str),
    /// Follows the whole name: `_g_idx` beside `X.weight` is `X.weight_g_idx`.
    OfWeight(&'static str),
}

impl Sibling {
    /// The name beside the weight called `weight`.
    pub(crate) fn beside(self, weight: &str) -> String {
        match self {
            Self::OfModule(part) => {
                let module = weight.strip_suffix("weight").unwrap_or(weight);
                format!("{module}{part}")
            }
            Self::OfWeight(end) => format!("{weight}{end}"),
        }
    }
}
