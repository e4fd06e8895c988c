//! Sorts a model's tensors into groups, copies, and what is dropped; collects what is wrong.

use crate::containers::model::Tensor;
#[cfg(feature = "gguf")]
use crate::scheme::seam::Scheme;
use crate::scheme::seam::{
    Group, Index, QuantScheme, SCHEMES, TensorRole, module_of, refused, roles, wrong,
};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// One tensor of the output.
pub(crate) enum Item<'m> {
    /// Decoded from its parts.
    Group(Group<'m>),
    /// Copied as it is.
    Plain(Tensor<'m>),
}

impl<'m> Item<'m> {
    /// Name in the output.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Group(group) => &group.name,
            Self::Plain(t) => t.name(),
        }
    }

    /// What modules have instead of a parameter.
    #[cfg(feature = "lethe")]
    pub(crate) fn module(&self) -> Option<&Group<'m>> {
        match self {
            Self::Group(group) => group.module.as_deref(),
            Self::Plain(_) => None,
        }
    }

    /// The same, of which nothing is left.
    #[cfg(feature = "lethe")]
    pub(crate) fn take_module(&mut self) -> Option<Group<'m>> {
        match self {
            Self::Group(group) => group.module.take().map(|module| *module),
            Self::Plain(_) => None,
        }
    }
}

/// A tensor that cannot be part of an output, and why.
pub(crate) struct Problem<'m> {
    pub tensor: Tensor<'m>,
    pub role: TensorRole,
    pub scheme: QuantScheme,
    pub error: AnamnesisError,
}

/// What becomes of every tensor of a model.
#[derive(Default)]
pub(crate) struct Resolution<'m> {
    /// In the order of the source; a group stands where its codes are.
    pub items: Vec<Item<'m>>,
    /// Activation scales and markers: in no output, and said in the report.
    pub dropped: Vec<Tensor<'m>>,
    /// The gravest first: failed claims, then tensors left over; each in the order of the source.
    pub problems: Vec<Problem<'m>>,
}

impl ParsedModel {
    /// Sorts every tensor into groups, plain tensors, dropped ones and problems.
    pub(crate) fn resolve(&self) -> Resolution<'_> {
        Resolution::new(self)
    }
}

impl<'m> Resolution<'m> {
    /// Resolves every tensor. Problems are collected, so that a listing can show them all.
    pub(crate) fn new(model: &'m ParsedModel) -> Self {
        let all = Index::new(model);
        let mut out = Self::default();
        let mut owner: Vec<Option<Tensor<'m>>> = vec![None; model.tensors.len()];
        let mut groups: Vec<Option<Group<'m>>> = Vec::new();
        groups.resize_with(model.tensors.len(), || None);
        for t in model.tensors() {
            match claim(&t, &all) {
                Ok(Some(group)) => {
                    if let Err(error) = own(&group, &mut owner) {
                        out.problems.push(Problem {
                            tensor: t,
                            role: TensorRole::Quantized,
                            scheme: group.scheme,
                            error,
                        });
                    } else {
                        out.check_whole(&t, &group, &all);
                        groups[t.index] = Some(group);
                    }
                }
                Ok(None) => {}
                Err((scheme, error)) => {
                    owner[t.index] = Some(t);
                    out.problems.push(Problem {
                        tensor: t,
                        role: TensorRole::Quantized,
                        scheme,
                        error,
                    });
                }
            }
        }
        // A failed claim leaves its companions behind; they are not to be blamed as well.
        let blame = out.problems.is_empty();
        let quantized = all.config.is_quantized() || !blame || groups.iter().any(Option::is_some);
        for t in model.tensors() {
            if let Some(group) = groups[t.index].take() {
                out.items
                    .extend(group.taken_apart().into_iter().map(Item::Group));
            } else if owner[t.index].is_none() {
                out.leftover(t, &all, quantized, blame);
            }
        }
        out.check_config(model, &all);
        out
    }

    /// A shard by itself can be without what a weight does without as well, but not as the same.
    fn check_whole(&mut self, t: &Tensor<'m>, group: &Group<'m>, all: &Index<'m>) {
        if all.is_whole {
            return;
        }
        let module = group.name.strip_suffix("weight").unwrap_or(&group.name);
        let own = OPTIONAL.iter().map(|part| format!("{module}{part}"));
        let names =
            own.chain(["_zero_point", "_g_idx"].map(|part| format!("{}{part}", group.name)));
        let missing: Vec<String> = names.filter(|name| all.get(name).is_none()).collect();
        let error = match all.config.is_indexed(&missing) {
            Ok(false) => return,
            Ok(true) => wrong(
                t,
                "the index has a part of it in another shard; give the directory instead",
            ),
            Err(error) => error,
        };
        self.problems.push(Problem {
            tensor: *t,
            role: TensorRole::Quantized,
            scheme: group.scheme,
            error,
        });
    }

    /// A config that speaks of a scheme which nothing here decodes: whatever its tensors look like, they are
    /// not to be taken for weights.
    fn check_config(&mut self, model: &'m ParsedModel, all: &Index<'m>) {
        if all.is_gguf {
            return;
        }
        let claimed = !self.problems.is_empty() || self.groups().next().is_some();
        // What is called a weight and its scale is so called by many: a method that is not known may mean something else.
        let generic = self.groups().any(|group| match group.scheme {
            QuantScheme::Grouped { family: "HQQ", .. }
            | QuantScheme::Grouped { codes: "INT8", .. } => true,
            scheme => scheme.family() == "FP8",
        });
        let known = |method: &str| METHODS.contains(&method) || method.starts_with("modelopt");
        let method = all
            .config
            .method()
            .filter(|method| (!claimed || generic) && !known(method));
        let rotated = all
            .config
            .has("transform_config")
            .then(|| "compressed-tensors with transform_config".to_owned());
        let (Some(scheme), Some(tensor)) = (method.or(rotated), model.tensors().next()) else {
            return;
        };
        let place = all
            .config
            .text(&["quant_method", "method"])
            .map_or("the config", |(_, place)| place);
        let what = format!(
            "{place} says that the model is quantized like this (quant_method), which is not decoded"
        );
        let error = refused(&tensor, &scheme, what);
        let scheme = QuantScheme::Other("unknown scheme");
        self.problems.push(Problem {
            tensor,
            role: TensorRole::Passthrough,
            scheme,
            error,
        });
    }

    /// A tensor that no scheme claimed.
    fn leftover(&mut self, t: Tensor<'m>, all: &Index<'m>, quantized: bool, blame: bool) {
        #[cfg(feature = "gguf")]
        if all.is_gguf {
            let is_activation = crate::scheme::ggml::is_activation(&t, all);
            return if is_activation {
                self.dropped.push(t)
            } else {
                self.items.push(Item::Plain(t))
            };
        }
        // Models have scales of their attention heads, of the same names; those of a cache are one, or configured.
        let cached = t.elements() <= 1
            || all.config.has("kv_cache_scheme")
            || all.config.has("kv_cache_quant_algo");
        let is_activation =
            roles::is_activation(t.name()) && (cached || !roles::may_be_of_heads(t.name()));
        if quantized && is_activation || roles::is_marker(t.name()) {
            self.dropped.push(t);
            return;
        }
        match check_plain(&t, all) {
            Ok(()) => self.items.push(Item::Plain(t)),
            Err((role, error)) if blame || role == TensorRole::Quantized => {
                self.problems.push(Problem {
                    tensor: t,
                    role,
                    scheme: QuantScheme::Unquantized,
                    error,
                });
            }
            Err(_) => self.dropped.push(t),
        }
    }

    /// The groups among the items, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group<'m>> {
        self.items.iter().filter_map(|item| match item {
            Item::Group(group) => Some(group),
            Item::Plain(_) => None,
        })
    }

    /// The first problem, as an error.
    pub(crate) fn into_result(mut self) -> Result<Self> {
        if self.problems.is_empty() {
            Ok(self)
        } else {
            Err(self.problems.swap_remove(0).error)
        }
    }
}

/// Companions that some weights have and others not.
const OPTIONAL: &[&str] = &[
    "pre_quant_scale",
    "g_idx",
    "qzeros",
    "scaled_zeros",
    "global_scale",
    "svdquant_lora_a",
    "svdquant_lora_b",
    "weight_quantizer._svdquant_lora_a",
];

/// Values of `quant_method` whose tensors are decoded, or refused one by one. A file of such a model can be
/// without any quantized tensor.
const METHODS: &[&str] = &[
    "fp8",
    "fbgemm_fp8",
    "mxfp8",
    "gptq",
    "awq",
    "metal",
    "bitsandbytes",
    "compressed-tensors",
    "modelopt",
    "auto-round",
    "mxfp4",
    "quark",
    "torchao",
    "bitnet",
    "gemma",
    "quanto",
    "hqq",
    "w8a8_int8",
    "w8a8_fp8",
];

fn claim<'m>(
    t: &Tensor<'m>,
    all: &Index<'m>,
) -> std::result::Result<Option<Group<'m>>, (QuantScheme, AnamnesisError)> {
    #[cfg(feature = "gguf")]
    if all.is_gguf {
        let scheme = crate::scheme::ggml::Ggml;
        return scheme
            .claim(t, all)
            .map_err(|error| (scheme.kind(t, all), error));
    }
    for scheme in SCHEMES {
        match scheme.claim(t, all) {
            Ok(None) => {}
            Ok(group) => return Ok(group),
            Err(error) => return Err((scheme.kind(t, all), error)),
        }
    }
    Ok(None)
}

/// Enters `group` as the owner of its parts. A tensor has one owner.
fn own<'m>(group: &Group<'m>, owner: &mut [Option<Tensor<'m>>]) -> Result<()> {
    let weight = group.parts[0].1;
    for (_, part) in &group.parts {
        if let Some(other) = owner[part.index].filter(|other| other.index != weight.index) {
            return Err(wrong(
                &weight,
                format!(
                    "its `{}` belongs to `{}` as well",
                    part.name(),
                    other.name()
                ),
            ));
        }
        owner[part.index] = Some(weight);
    }
    Ok(())
}

/// Whether an unclaimed tensor can be a plain one: neither a scale without its weight, nor an integer
/// weight that the config says is quantized.
fn check_plain(
    t: &Tensor<'_>,
    all: &Index<'_>,
) -> std::result::Result<(), (TensorRole, AnamnesisError)> {
    if let Some(role) = roles::companion(t.name()) {
        let what = "it belongs to a quantized weight, and none goes with it";
        return Err((role, wrong(t, what)));
    }
    if t.dtype() == Dtype::F8E8M0 && t.name().ends_with(".scale") {
        return Err((
            TensorRole::Scale,
            wrong(t, "it scales a quantized weight, and none goes with it"),
        ));
    }
    let ends = [
        ".weight",
        "_blocks",
        "_packed",
        "_qdata",
        "._data",
        "_proj",
        ".w13_weight",
        ".w2_weight",
    ];
    let is_weight = t.name() == "weight" || ends.iter().any(|end| t.name().ends_with(end));
    let is_weight = is_weight || t.name().contains(".experts.") && t.shape().len() >= 2;
    // BitsAndBytes can store its bytes under the dtype of the model: one column of them.
    let bytes =
        matches!(t.shape(), &[n, 1] if n > 1) && all.config.flag("load_in_4bit") == Some(true);
    let is_codes = is_weight && (t.dtype().is_integer() || t.dtype().is_quantized() || bytes);
    let is_scales = t.name().ends_with(".scales");
    if !(is_codes || is_scales)
        || !all.config.is_quantized()
        || all.config.at(module_of(t.name())).skipped
    {
        return Ok(());
    }
    if is_scales {
        Err((
            TensorRole::Scale,
            wrong(
                t,
                "the config says that the model is quantized, and no weight goes with it",
            ),
        ))
    } else {
        let method = all
            .config
            .method()
            .unwrap_or_else(|| "quantized".to_owned());
        let what = format!(
            "the config says that it is quantized ({method}), and the tensors that would say how are missing"
        );
        Err((TensorRole::Quantized, wrong(t, what)))
    }
}
