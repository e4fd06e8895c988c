//! Layers that Keras has quantized: the model's config says which datasets are codes, and which
//! have their scales. A layer's variables are numbered in the order of Keras's
//! `variable_serialization_spec`.

use std::collections::HashMap;

use serde_json::Value;

use crate::Dtype;
use crate::ParsedModel;
use crate::model::{GraphCodes, GraphRole, TensorInfo};

/// Names of the operators of [`GraphCodes`] for layers that are not decoded.
const UNKNOWN: &str = "that of a layer of Keras that no config describes";

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
    /// Columns of an `Embedding`.
    output_dim: Option<usize>,
}

/// The quantized layers of a model by their names; `None` if two that differ have one.
#[derive(Default)]
pub(super) struct KerasLayers(HashMap<String, Option<KerasLayer>>);

impl KerasLayers {
    /// Collects the quantized layers of a model's config, in models inside of it too.
    pub(super) fn read(config: &Value) -> Self {
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
            output_dim: sizes(config.get("output_dim")).first().copied().flatten(),
        };
        Some((name.to_owned(), layer))
    }

    /// Where the kernel's scales lie, and its shape if the stored one is not that.
    fn kernel(&self, stored: &[usize]) -> Option<KerasKernel> {
        match self.class.as_str() {
            "Dense" => Some(KerasKernel { is_by_row: false, shape: None, reduced: 1 }),
            "Embedding" => Some(KerasKernel { is_by_row: true, shape: None, reduced: 1 }),
            "EinsumDense" => self.einsum(stored),
            _ => None,
        }
    }

    /// The kernel of an `EinsumDense`, if the axes that it sums over come first, and the others as
    /// in the output.
    fn einsum(&self, stored: &[usize]) -> Option<KerasKernel> {
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
        if !is_first
            || !in_order
            || kernel
                .chars()
                .any(|c| !input.contains(c) && !output.contains(c))
        {
            return None;
        }
        if !self.mode.starts_with("int4") {
            return Some(KerasKernel { is_by_row: false, shape: Some(stored.to_vec()), reduced });
        }
        // Stored as a matrix: the sizes are those of input and output, whose first one is the
        // batch.
        let size = |c: char| {
            let of_input = input.chars().position(|other| other == c);
            let of_output = output.chars().position(|other| other == c)?;
            of_input
                .and_then(|i| *self.input.get(i)?)
                .or_else(|| *self.output.get(of_output.checked_sub(1)?)?)
        };
        let of_input = |c: char| {
            let i = input.chars().position(|other| other == c)?;
            *self.input.get(i)?
        };
        let shape: Option<Vec<usize>> = kernel
            .chars()
            .map(|c| of_input(c).or_else(|| size(c)))
            .collect();
        Some(KerasKernel { is_by_row: false, shape: Some(shape?), reduced })
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

/// How a kernel lies.
struct KerasKernel {
    /// Whether each row has scales of its own, and not each column.
    is_by_row: bool,
    shape: Option<Vec<usize>>,
    /// Axes of the shape that are its rows.
    reduced: usize,
}

/// The variables of a layer, by its group `path` and its name.
pub(super) struct KerasVariables {
    pub path: String,
    pub name: String,
}

/// Tells which tensors of `contents` are codes and scales.
pub(super) fn mark(contents: &mut ParsedModel, groups: &[KerasVariables], layers: &KerasLayers) {
    if groups.is_empty() {
        return;
    }
    let numbers: HashMap<&str, usize> = contents
        .tensors
        .iter()
        .enumerate()
        .map(|(i, t)| (&*t.name, i))
        .collect();
    let mut roles: Vec<(usize, GraphRole)> = Vec::new();
    for group in groups {
        let variables: Vec<usize> = (0..)
            .map_while(|i| numbers.get(&*format!("{}/{i}", group.path)).copied())
            .collect();
        let is_code = |i: &usize| {
            let t = &contents.tensors[*i];
            matches!(t.dtype, Dtype::I8 | Dtype::U8) && t.shape.len() > 1
        };
        let Some(first) = variables.iter().position(is_code) else {
            continue;
        };
        let layer = layers.0.get(&group.name).and_then(Option::as_ref);
        let known = layer.and_then(|layer| {
            let tensors: Vec<&TensorInfo> =
                variables.iter().map(|&i| &contents.tensors[i]).collect();
            roles_of(layer, &tensors)
        });
        match known {
            Some(known) => roles.extend(variables.iter().copied().zip(known)),
            None => {
                let op = match layer {
                    Some(layer) => {
                        format!("that of Keras's `{}` in mode {}", layer.class, layer.mode)
                    }
                    None => UNKNOWN.to_owned(),
                };
                let codes = GraphCodes::new(&op);
                roles.push((variables[first], GraphRole::Codes(Box::new(codes))));
            }
        }
    }
    if !roles.is_empty() {
        contents
            .graph
            .resize(contents.tensors.len(), GraphRole::Plain);
    }
    for (i, role) in roles {
        contents.graph[i] = role;
    }
}

/// The roles of the variables of a layer that is decoded.
fn roles_of(layer: &KerasLayer, variables: &[&TensorInfo]) -> Option<Vec<GraphRole>> {
    let (bits, block) = match layer.mode.split_once('/') {
        None if layer.mode == "int8" => (8, None),
        None if layer.mode == "int4" => (4, None),
        Some(("int4", "-1")) => (4, None),
        Some(("int4", block)) => (4, Some(block.parse::<u32>().ok().filter(|&n| n > 0)?)),
        _ => return None,
    };
    let [codes, rest @ ..] = variables else {
        return None;
    };
    // A bias comes before the scales; behind those of blocks are zero points and the number of each
    // row's block.
    let behind = if block.is_some() { 2 } else { 0 };
    let has_bias = match rest.len().checked_sub(1 + behind)? {
        0 => false,
        1 if layer.class != "Embedding" => true,
        _ => return None,
    };
    let at = usize::from(has_bias);
    let scale = rest[at];
    let kernel = layer.kernel(&codes.shape)?;
    let shape = kernel.shape.unwrap_or_else(|| codes.shape.to_vec());
    let count = |sizes: &[usize]| {
        sizes
            .iter()
            .try_fold(1usize, |n, &size| n.checked_mul(size))
    };
    let rows = match bits {
        4 => *codes.shape.first()?,
        _ => count(shape.get(..kernel.reduced)?)?,
    };
    // Of four bits two are in a byte, and the last column may be alone there.
    let stored: usize = codes.shape.last().copied()?;
    let cols = match (bits, kernel.is_by_row) {
        (4, false) => *scale.shape.last()?,
        (4, true) => layer.output_dim?,
        _ => count(shape.get(kernel.reduced..)?)?,
    };
    if bits == 4 && (codes.shape.len() != 2 || cols.div_ceil(2) != stored) {
        return None;
    }
    let shape = match bits {
        4 if shape.len() == 2 => vec![rows, cols],
        4 if count(&shape)? == rows.checked_mul(cols)? => shape,
        4 => return None,
        _ => shape,
    };
    let axis = i64::from(kernel.is_by_row == block.is_some());
    let mut described = GraphCodes {
        scale: Some(scale.name.clone()),
        zero_point: block.map(|_| rest[at + 1].name.clone()),
        shape: Some(shape),
        ..GraphCodes::along(axis, block.unwrap_or(0).into())
    };
    let numbers = [
        (GraphCodes::ROWS, rows),
        (GraphCodes::COLS, cols),
        (GraphCodes::BITS, bits),
        (GraphCodes::DIVIDES, usize::from(block.is_none())),
    ];
    for (key, n) in numbers {
        described
            .integers
            .push((key.to_owned(), i64::try_from(n).ok()?));
    }
    let companion = || GraphRole::Companion { is_shared: false };
    let mut roles = vec![GraphRole::Codes(Box::new(described))];
    roles.extend(has_bias.then_some(GraphRole::Plain));
    roles.extend(std::iter::repeat_with(companion).take(1 + behind));
    Some(roles)
}
