//! What the config of a model says of the layers that Keras has quantized.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::Value;

use super::attention::Attention;
use super::kernel::{KerasKernel, sizes};

/// What the config says of a layer.
#[derive(Clone, PartialEq, Eq)]
struct KerasLayer {
    class: String,
    /// `int8`, `int4/64` and the like.
    mode: String,
    /// The equation of an `EinsumDense`.
    equation: String,
    /// Sizes of its input and its output, of which some are not known.
    input: Vec<Option<usize>>,
    output: Vec<Option<usize>>,
    /// Columns of a `Dense` and of an `Embedding`.
    units: Option<usize>,
    output_dim: Option<usize>,
}

/// What is known of a layer.
pub(super) struct FoundLayer {
    pub class: String,
    /// `None` if the config does not tell.
    pub mode: Option<String>,
    /// `None` for layers that are not decoded.
    pub kernel: Option<KerasKernel>,
    /// The second kernel of an embedding, of the way back.
    pub reversed: Option<KerasKernel>,
}

/// What a model's config says of quantized layers by their names; `None` if two that differ have one.
#[derive(Default)]
pub(in crate::parse::hdf5) struct KerasLayers {
    layers: HashMap<String, Option<KerasLayer>>,
    /// Layers and models with others inside that have no config.
    attentions: HashMap<String, Option<Attention>>,
    /// Modes of layers by their paths, from maps of policies.
    policies: HashMap<String, Option<String>>,
    /// The name of the model.
    root: Option<String>,
}

/// Adds a value for `name`, which may have that value already.
fn add<T: PartialEq>(map: &mut HashMap<String, Option<T>>, name: String, value: T) {
    match map.entry(name) {
        Entry::Occupied(mut known) if known.get().as_ref() != Some(&value) => {
            known.insert(None);
        }
        Entry::Occupied(_) => {}
        Entry::Vacant(place) => {
            place.insert(Some(value));
        }
    }
}

impl KerasLayers {
    /// Collects the quantized layers of a model's config, in models inside of it too.
    pub(in crate::parse::hdf5) fn read(config: &Value) -> Self {
        let name = |value: &Value| Some(value.get("config")?.get("name")?.as_str()?.to_owned());
        let mut found = Self { root: name(config), ..Self::default() };
        let mut rest = vec![config];
        while let Some(value) = rest.pop() {
            match value {
                Value::Array(items) => rest.extend(items),
                Value::Object(map) => {
                    if let Some((name, layer)) = KerasLayer::read(value) {
                        add(&mut found.layers, name, layer);
                    }
                    if let Some((name, attention)) = name(value).zip(Attention::read(value)) {
                        add(&mut found.attentions, name, attention);
                    }
                    if let Some(Value::Object(policies)) = map.get("policy_map") {
                        for (path, policy) in policies {
                            let mode = mode(policy).unwrap_or_default().to_owned();
                            add(&mut found.policies, path.clone(), mode);
                        }
                    }
                    rest.extend(map.values());
                }
                _ => {}
            }
        }
        found
    }

    /// The layer with the last of `names`, which is inside of the others, if there is one such layer.
    pub(super) fn find(&self, names: &[String]) -> Option<FoundLayer> {
        let (name, around) = names.split_last()?;
        let around = self.root.iter().chain(around).rev();
        let inside = around
            .filter_map(|around| self.attentions.get(around))
            .find_map(|attention| match attention {
                Some(attention) => attention.layer(name).map(Some),
                None => Some(None),
            });
        if let Some(inside) = inside {
            let (class, kernel) = inside?;
            let mut paths = (0..names.len()).map(|first| names[first..].join("/"));
            let mode = paths.find_map(|path| self.policies.get(&path).cloned());
            let reversed = kernel
                .is_by_row
                .then(|| KerasKernel::matrix(kernel.shape[1], None));
            return Some(FoundLayer {
                class: class.to_owned(),
                // A mode that differs is none that is known.
                mode: mode.map(Option::unwrap_or_default),
                kernel: Some(kernel),
                reversed,
            });
        }
        let layer = self.layers.get(name)?.as_ref()?;
        Some(FoundLayer {
            class: layer.class.clone(),
            mode: Some(layer.mode.clone()),
            kernel: layer.kernel(),
            reversed: (layer.class == REVERSIBLE)
                .then(|| KerasKernel::matrix(layer.output_dim, None)),
        })
    }
}

/// The class of embeddings with a way back.
const REVERSIBLE: &str = "ReversibleEmbedding";

impl KerasLayer {
    /// A layer and its name, if `value` is one that is quantized.
    fn read(value: &Value) -> Option<(String, Self)> {
        let class = value.get("class_name")?.as_str()?;
        let config = value.get("config")?;
        let name = config.get("name")?.as_str()?;
        let mode = mode(config.get("dtype")?)?;
        let size = |key: &str| sizes(config.get(key)).first().copied().flatten();
        let equation = config.get("equation").and_then(Value::as_str).unwrap_or("");
        let input = value
            .get("build_config")
            .and_then(|config| config.get("input_shape"));
        let layer = Self {
            class: class.to_owned(),
            mode: mode.to_owned(),
            equation: equation.to_owned(),
            input: sizes(input),
            output: sizes(config.get("output_shape")),
            units: size("units"),
            output_dim: size("output_dim"),
        };
        Some((name.to_owned(), layer))
    }

    /// How the kernel lies; `None` for layers that are not decoded.
    fn kernel(&self) -> Option<KerasKernel> {
        match self.class.as_str() {
            "Dense" => Some(KerasKernel::matrix(self.input.last().copied().flatten(), self.units)),
            "Embedding" | REVERSIBLE => {
                Some(KerasKernel { is_by_row: true, ..KerasKernel::matrix(None, self.output_dim) })
            }
            "EinsumDense" => self.einsum(),
            _ => None,
        }
    }

    /// The kernel of an `EinsumDense`, if the axes that it sums over come first, and the others as
    /// in the output.
    fn einsum(&self) -> Option<KerasKernel> {
        let (inputs, output) = self.equation.split_once("->")?;
        let (input, kernel) = inputs.split_once(',')?;
        if self.equation.contains('.') {
            return None;
        }
        let kept: Vec<char> = kernel.chars().filter(|&c| output.contains(c)).collect();
        let reduced = kernel.chars().count() - kept.len();
        let is_first = kernel.chars().skip(reduced).eq(kept.iter().copied());
        let in_order = output
            .chars()
            .filter(|&c| kernel.contains(c))
            .eq(kept.iter().copied());
        let is_known = |c| input.contains(c) || output.contains(c);
        if !is_first || !in_order || !kernel.chars().all(is_known) {
            return None;
        }
        // The first axis of the output, which its shape in the config has not, is the batch.
        let size = |c: char| {
            let in_input = || {
                *self
                    .input
                    .get(input.chars().position(|other| other == c)?)?
            };
            let in_output = || {
                let at = output.chars().position(|other| other == c)?;
                *self.output.get(at.checked_sub(1)?)?
            };
            in_input().or_else(in_output)
        };
        let shape = kernel.chars().map(size).collect();
        Some(KerasKernel { is_by_row: false, shape, reduced, ahead: 0 })
    }
}

/// The mode in which a layer with this policy is quantized: that of its config, or the beginning of
/// names such as `int8_from_float32`.
fn mode(policy: &Value) -> Option<&str> {
    let config = policy.get("config");
    if let Some(mode) = config.and_then(|config| config.get("mode")) {
        return mode.as_str();
    }
    let name = config.map_or(Some(policy), |config| config.get("name"))?;
    name.as_str()?.split_once("_from_").map(|(mode, _)| mode)
}
