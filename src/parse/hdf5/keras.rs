//! Layers that Keras has quantized: the model's config says which datasets are codes, and which
//! have their scales. A layer's variables are numbered in the order of Keras's
//! `variable_serialization_spec`; in files of whole models (`.h5`) they have their names.
//!
//! - `config`: what the config says of a layer.

mod config;

use std::collections::HashMap;

use crate::model::{GraphCodes, GraphRole, TensorInfo};
use crate::{Dtype, ParsedModel, Result};

pub(super) use self::config::KerasLayers;
use self::config::{KerasKernel, KerasLayer};

/// The operator of [`GraphCodes`] for layers that no config describes.
const UNKNOWN: &str = "that of a layer of Keras that no config describes (the model's `config.json` belongs beside the file)";

/// Where `.h5` has the weights of a whole model.
const WHOLE: &str = "model_weights/";

/// Names of what a layer has in a whole model, in the order of their numbers elsewhere.
const NAMES: [&str; 10] = [
    "embeddings",
    "embeddings_scale",
    "kernel",
    "bias",
    "kernel_scale",
    "embeddings_zero",
    "kernel_zero",
    "g_idx",
    "reverse_embeddings",
    "reverse_embeddings_scale",
];

/// The variables of a layer, by its group `path` and its name.
pub(super) struct KerasVariables {
    pub path: String,
    pub name: String,
}

/// The tensors of a layer, in the order of their numbers.
struct StoredLayer {
    name: String,
    variables: Vec<usize>,
}

/// Tells which tensors of `contents` are codes and scales. The config is asked for if there are
/// codes.
///
/// # Errors
/// Those of `config`.
pub(super) fn mark(
    contents: &mut ParsedModel,
    groups: &[KerasVariables],
    config: impl FnOnce() -> Result<KerasLayers>,
) -> Result<()> {
    let stored = quantized(contents, groups);
    if stored.is_empty() {
        return Ok(());
    }
    let layers = config()?;
    contents
        .graph
        .resize(contents.tensors.len(), GraphRole::Plain);
    for StoredLayer { name, variables } in stored {
        let tensors: Vec<&TensorInfo> = variables.iter().map(|&i| &contents.tensors[i]).collect();
        let layer = layers.get(&name);
        let roles = layer
            .and_then(|layer| roles_of(layer, &tensors))
            .unwrap_or_else(|| refused(layer, &tensors));
        for (i, role) in variables.into_iter().zip(roles) {
            contents.graph[i] = role;
        }
    }
    Ok(())
}

/// Layers that have codes.
fn quantized(contents: &ParsedModel, groups: &[KerasVariables]) -> Vec<StoredLayer> {
    let has_codes = contents.tensors.iter().any(is_code);
    if !has_codes {
        return vec![];
    }
    let numbers: HashMap<&str, usize> = contents
        .tensors
        .iter()
        .enumerate()
        .map(|(i, t)| (&*t.name, i))
        .collect();
    let number = |path: &str, name: &str| numbers.get(&*format!("{path}/{name}")).copied();
    let numbered = groups.iter().map(|group| StoredLayer {
        name: group.name.clone(),
        variables: (0..)
            .map_while(|i| number(&group.path, &i.to_string()))
            .collect(),
    });
    let named = contents.tensors.iter().filter_map(|t| {
        let (path, name) = t.name.rsplit_once('/')?;
        // Each layer once, by its first codes.
        let is_first =
            path.starts_with(WHOLE) && is_code(t) && matches!(name, "kernel" | "embeddings");
        let (_, layer) = path.rsplit_once('/').filter(|_| is_first)?;
        let variables = NAMES.iter().filter_map(|name| number(path, name));
        let variables = variables.collect();
        Some(StoredLayer { name: layer.to_owned(), variables })
    });
    let has_codes = |layer: &StoredLayer| {
        let mut variables = layer.variables.iter();
        variables.any(|&i| is_code(&contents.tensors[i]))
    };
    numbered.chain(named).filter(has_codes).collect()
}

/// Whether `t` may be codes of a kernel.
fn is_code(t: &TensorInfo) -> bool {
    matches!(t.dtype, Dtype::I8 | Dtype::U8) && t.shape.len() > 1
}

/// The roles of the variables of a layer that is not decoded: none of its codes is a weight.
fn refused(layer: Option<&KerasLayer>, variables: &[&TensorInfo]) -> Vec<GraphRole> {
    let op = match layer {
        Some(layer) => format!("that of Keras's `{}` in mode {}", layer.class, layer.mode),
        None => UNKNOWN.to_owned(),
    };
    let role = |t: &&TensorInfo| match is_code(t) {
        true => GraphRole::Codes(Box::new(GraphCodes::new(&op))),
        false => GraphRole::Plain,
    };
    variables.iter().map(role).collect()
}

/// The roles of the variables of a layer that is decoded.
fn roles_of(layer: &KerasLayer, variables: &[&TensorInfo]) -> Option<Vec<GraphRole>> {
    if let Some(rest) = layer.mode.strip_prefix("gptq/") {
        let bits = rest.split('/').next()?.parse().ok()?;
        return indexed_roles(&layer.kernel(false)?, bits, variables);
    }
    let (bits, block) = match layer.mode.split_once('/') {
        None if layer.mode == "int8" => (8, None),
        None if layer.mode == "int4" => (4, None),
        Some(("int4", "-1")) => (4, None),
        Some(("int4", block)) => (4, Some(block.parse::<u32>().ok().filter(|&n| n > 0)?)),
        _ => return None,
    };
    let may_be_old = layer.mode == "int4";
    let codes = |is_reversed| {
        let kernel = layer.kernel(is_reversed)?;
        Some(QuantizedKernel { kernel, bits, block, may_be_old })
    };
    // A matrix of its own for the way back has its scales behind those of the first.
    if layer.class == "ReversibleEmbedding" && variables.len() == 4 && bits == 8 {
        let (there, back) = variables.split_at(2);
        let mut roles = codes(false)?.roles(there)?;
        roles.extend(codes(true)?.roles(back)?);
        return Some(roles);
    }
    codes(false)?.roles(variables)
}

/// The roles of the variables of GPTQ: a bias, codes, scales, zero points, and the group of each
/// input. Keras from 3.14 on does not save zero points, nor does it for AWQ: such codes are not decoded.
fn indexed_roles(
    kernel: &KerasKernel,
    bits: usize,
    variables: &[&TensorInfo],
) -> Option<Vec<GraphRole>> {
    let has_bias = !is_code(variables.first()?);
    let [codes, scale, zero_point, index] = variables[usize::from(has_bias)..] else {
        return None;
    };
    let (&[_, rows], &[cols, _]) = (&*codes.shape, &*scale.shape) else {
        return None;
    };
    let known: Option<Vec<usize>> = kernel.shape.iter().copied().collect();
    let shape = known.unwrap_or(vec![rows, cols]);
    let agrees = shape.len() == kernel.shape.len()
        && count(&shape) == rows.checked_mul(cols)
        && (shape.len() > 2 || shape == [rows, cols]);
    if kernel.is_by_row || !agrees || !matches!(bits, 2 | 3 | 4 | 8) {
        return None;
    }
    let name = |t: &TensorInfo| Some(t.name.clone());
    let sizes = [(GraphCodes::ROWS, rows), (GraphCodes::COLS, cols), (GraphCodes::BITS, bits)];
    let integers = sizes.map(|(key, n)| Some((key.to_owned(), i64::try_from(n).ok()?)));
    let described = GraphCodes {
        scale: name(scale),
        zero_point: name(zero_point),
        index: name(index),
        shape: Some(shape),
        integers: integers.into_iter().collect::<Option<_>>()?,
        ..GraphCodes::new(GraphCodes::INDEXED)
    };
    let mut roles = vec![GraphRole::Companion { is_shared: false }; variables.len()];
    roles[usize::from(has_bias)] = GraphRole::Codes(Box::new(described));
    if has_bias {
        roles[0] = GraphRole::Plain;
    }
    Some(roles)
}

/// A kernel, and how its codes are stored.
struct QuantizedKernel {
    kernel: KerasKernel,
    bits: usize,
    /// Values that share a scale along the other axis.
    block: Option<u32>,
    /// Whether Keras 3.11 to 3.13 may have written it, which put codes of two rows in a byte.
    may_be_old: bool,
}

/// How codes lie: the decoded shape, its rows and columns as a matrix, and whether two rows share
/// bytes.
struct KerasCodes {
    shape: Vec<usize>,
    rows: usize,
    cols: usize,
    is_paired: bool,
}

impl QuantizedKernel {
    /// The roles of `variables`: codes, bias, scales, and of blocks zero points and the number of
    /// each row's block.
    fn roles(&self, variables: &[&TensorInfo]) -> Option<Vec<GraphRole>> {
        let [codes, rest @ ..] = variables else {
            return None;
        };
        let behind = if self.block.is_some() { 2 } else { 0 };
        let has_bias = match rest.len().checked_sub(1 + behind)? {
            0 => false,
            1 if !self.kernel.is_by_row => true,
            _ => return None,
        };
        let at = usize::from(has_bias);
        let scale = rest[at];
        let lie = match self.bits {
            8 => self.bytes(codes)?,
            _ => self.nibbles(codes, scale)?,
        };
        let axis = i64::from(self.kernel.is_by_row == self.block.is_some());
        let mut described = GraphCodes {
            scale: Some(scale.name.clone()),
            zero_point: self.block.map(|_| rest[at + 1].name.clone()),
            shape: Some(lie.shape),
            ..GraphCodes::along(axis, self.block.unwrap_or(0).into())
        };
        let numbers = [
            (GraphCodes::ROWS, lie.rows),
            (GraphCodes::COLS, lie.cols),
            (GraphCodes::BITS, self.bits),
            (GraphCodes::DIVIDES, usize::from(self.block.is_none())),
            (GraphCodes::PAIRED, usize::from(lie.is_paired)),
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

    /// Codes of a byte each; `None` if the config has other sizes.
    fn bytes(&self, codes: &TensorInfo) -> Option<KerasCodes> {
        let (shape, reduced) = (&self.kernel.shape, self.kernel.reduced);
        let agrees = |(known, &stored): (&Option<usize>, &usize)| known.is_none_or(|n| n == stored);
        if shape.len() != codes.shape.len() || !shape.iter().zip(&*codes.shape).all(agrees) {
            return None;
        }
        let (rows, cols) =
            (count(codes.shape.get(..reduced)?)?, count(codes.shape.get(reduced..)?)?);
        Some(KerasCodes { shape: codes.shape.to_vec(), rows, cols, is_paired: false })
    }

    /// Codes of four bits, two in a byte: of two columns of a matrix, the last of which may be alone
    /// in its byte, or of two rows. `None` if the sizes do not tell which, or are others.
    fn nibbles(&self, codes: &TensorInfo, scale: &TensorInfo) -> Option<KerasCodes> {
        let KerasKernel { is_by_row, ref shape, reduced } = self.kernel;
        let known =
            |sizes: &[Option<usize>]| count(&sizes.iter().copied().collect::<Option<Vec<_>>>()?);
        let rows = known(shape.get(..reduced)?);
        let cols = match known(shape.get(reduced..)?) {
            None if shape.len() == 2 && !is_by_row => *scale.shape.last()?,
            cols => cols?,
        };
        let decoded = |rows| match shape.len() {
            2 => Some(vec![rows, cols]),
            _ => shape.iter().copied().collect::<Option<Vec<_>>>(),
        };
        // One column is alone in its byte, and two rows of it look the same.
        let is_plain = is_by_row || !self.may_be_old || cols > 1 || rows.is_some();
        if let [stored, width] = codes.shape[..]
            && width == cols.div_ceil(2)
            && rows.is_none_or(|rows| rows == stored)
            && is_plain
        {
            return Some(KerasCodes {
                shape: decoded(stored)?,
                rows: stored,
                cols,
                is_paired: false,
            });
        }
        let (rows, paired) = (rows?, codes.shape.split_first()?);
        let is_paired = self.may_be_old && !is_by_row && reduced == 1;
        let fits = *paired.0 == rows.div_ceil(2) && count(paired.1)? == cols;
        (is_paired && fits && codes.shape.len() == shape.len())
            .then(|| Some(KerasCodes { shape: decoded(rows)?, rows, cols, is_paired }))?
    }
}

/// The product of `sizes`.
fn count(sizes: &[usize]) -> Option<usize> {
    sizes
        .iter()
        .try_fold(1usize, |n, &size| n.checked_mul(size))
}
