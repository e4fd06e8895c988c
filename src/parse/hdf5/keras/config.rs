//! What the config of a model says of the layers that Keras has quantized.

use std::collections::HashMap;

use serde_json::Value;

/// What the config says of a layer.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KerasLayer {
    pub class: String,
    /// `int8`, `int4/64` and the like.
    pub mode: String,
    /// The equation of an `EinsumDense`.
    equation: String,
    /// Sizes of its input and its output, of which some are not known.
    input: Vec<Option<usize>>,
    output: Vec<Option<usize>>,
    /// Columns of a `Dense` and of an `Embedding`.
    units: Option<usize>,
    output_dim: Option<usize>,
}

/// How the kernel of a layer lies, whatever its codes are.
pub(super) struct KerasKernel {
    /// Whether each row has scales of its own, and not each column.
    pub is_by_row: bool,
    /// Its shape, as far as the config tells.
    pub shape: Vec<Option<usize>>,
    /// Axes of the shape that are its rows.
    pub reduced: usize,
}

/// The quantized layers of a model by their names; `None` if two that differ have one.
#[derive(Default)]
pub(in crate::parse::hdf5) struct KerasLayers(HashMap<String, Option<KerasLayer>>);

impl KerasLayers {
    /// Collects the quantized layers of a model's config, in models inside of it too.
    pub(in crate::parse::hdf5) fn read(config: &Value) -> Self {
        let mut layers = Self::default();
        let mut rest = vec![config];
        while let Some(value) = rest.pop() {
            match value {
                Value::Array(items) => rest.extend(items),
                Value::Object(map) => {
                    if let Some((name, layer)) = KerasLayer::read(value) {
                        layers
                            .0
                            .entry(name)
                            .and_modify(|known| {
                                if known.as_ref() != Some(&layer) {
                                    *known = None;
                                }
                            })
                            .or_insert(Some(layer));
                    }
                    rest.extend(map.values());
                }
                _ => {}
            }
        }
        layers
    }

    /// The layer `name`, if there is one such layer.
    pub(super) fn get(&self, name: &str) -> Option<&KerasLayer> {
        self.0.get(name)?.as_ref()
    }
}

impl KerasLayer {
    /// A layer and its name, if `value` is one that is quantized.
    fn read(value: &Value) -> Option<(String, Self)> {
        let class = value.get("class_name")?.as_str()?;
        let config = value.get("config")?;
        let name = config.get("name")?.as_str()?;
        let mode = mode(config.get("dtype")?)?;
        let sizes = |value: Option<&Value>| -> Vec<Option<usize>> {
            let size = |n: &Value| n.as_u64().and_then(|n| usize::try_from(n).ok());
            match value {
                Some(Value::Array(items)) => items.iter().map(size).collect(),
                Some(n) => vec![size(n)],
                None => vec![],
            }
        };
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

    /// How the kernel lies; `None` for layers that are not decoded. The second kernel of an
    /// embedding that is `reversed` is that of a `Dense`.
    pub(super) fn kernel(&self, is_reversed: bool) -> Option<KerasKernel> {
        let of_matrix = |is_by_row, rows, cols| {
            Some(KerasKernel { is_by_row, shape: vec![rows, cols], reduced: 1 })
        };
        match self.class.as_str() {
            "Dense" => of_matrix(false, self.input.last().copied().flatten(), self.units),
            "ReversibleEmbedding" if is_reversed => of_matrix(false, self.output_dim, None),
            "Embedding" | "ReversibleEmbedding" => of_matrix(true, None, self.output_dim),
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
        Some(KerasKernel { is_by_row: false, shape, reduced })
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
