//! Layers that Keras has quantized: the model's config says which datasets are codes, and which
//! have their scales. A layer's variables are numbered in the order of Keras's
//! `variable_serialization_spec`; in files of whole models (`.h5`) they have their names.
//!
//! - `config`: what the config says of a layer; `attention`: layers inside of others.
//! - `kernel`: how a kernel lies; `stored`: the mode of a layer by how its variables are stored.

mod attention;
mod config;
mod kernel;
mod stored;

use std::collections::HashMap;

use crate::model::{GraphCodes, GraphRole, TensorInfo};
use crate::{Dtype, ParsedModel, Result};

use self::config::FoundLayer;
pub(super) use self::config::KerasLayers;
use self::kernel::KerasKernel;
use self::stored::block_of;

/// The operator of [`GraphCodes`] for layers that no config describes.
const UNKNOWN: &str = "that of a layer of Keras that no config describes (the model's `config.json` belongs beside the file)";

/// Where `.h5` has the weights of a whole model.
const WHOLE: &str = "model_weights/";

/// Names of what a layer has in a whole model, in the order of their numbers elsewhere.
const NAMES: [&str; 11] = [
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
    "reverse_embeddings_zero",
];

/// The variables of a layer, by its group `path` and its name.
pub(super) struct KerasVariables {
    pub path: String,
    pub name: String,
}

/// Most names of layers around a layer; models have three or four.
const MAX_AROUND: usize = 16;

/// The tensors of a layer, in the order of their numbers.
struct StoredLayer {
    /// Those of the layers around it, and its own.
    names: Vec<String>,
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
    // Each index of blocks is read once, but hostile files may have many in one place.
    let mut readable = contents.sources[0].len().unwrap_or(0);
    contents
        .graph
        .resize(contents.tensors.len(), GraphRole::Plain);
    for StoredLayer { names, variables } in stored {
        let tensors: Vec<&TensorInfo> = variables.iter().map(|&i| &contents.tensors[i]).collect();
        let mut layer = layers.find(&names);
        if let Some(FoundLayer { mode: mode @ None, kernel: Some(kernel), .. }) = &mut layer {
            let block = |index: &TensorInfo| block_of(index, &contents.sources[0], &mut readable);
            *mode = kernel.mode_of(&tensors, block)?;
        }
        let roles = layer
            .as_ref()
            .and_then(|layer| roles_of(layer, &tensors))
            .unwrap_or_else(|| refused(layer.as_ref(), &tensors));
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
    let named: HashMap<&str, &str> = groups.iter().map(|g| (&*g.path, &*g.name)).collect();
    let numbered = groups.iter().map(|group| StoredLayer {
        names: names_around(group, &named),
        variables: (0..)
            .map_while(|i| number(&group.path, &i.to_string()))
            .collect(),
    });
    let whole = contents.tensors.iter().filter_map(|t| {
        let (path, name) = t.name.rsplit_once('/')?;
        // Each layer once, by its first codes.
        let is_first = is_code(t) && matches!(name, "kernel" | "embeddings");
        // Below the group of a layer of the model there are the names of those around the variables.
        let inside = path.strip_prefix(WHOLE).filter(|_| is_first)?;
        let (_, layers) = inside.split_once('/').unwrap_or(("", inside));
        let names = layers.rsplitn(MAX_AROUND, '/').map(str::to_owned);
        let mut names: Vec<String> = names.collect();
        names.reverse();
        let variables = NAMES.iter().filter_map(|name| number(path, name));
        Some(StoredLayer { names, variables: variables.collect() })
    });
    let has_codes = |layer: &StoredLayer| {
        let mut variables = layer.variables.iter();
        variables.any(|&i| is_code(&contents.tensors[i]))
    };
    numbered.chain(whole).filter(has_codes).collect()
}

/// The names of the layers around a group of variables, but not that of the model, and its own.
fn names_around(group: &KerasVariables, named: &HashMap<&str, &str>) -> Vec<String> {
    let mut names = vec![group.name.clone()];
    let mut path = group.path.strip_suffix("/vars").unwrap_or_default();
    while let Some((around, _)) = path.rsplit_once('/')
        && names.len() < MAX_AROUND
    {
        names.extend(
            named
                .get(&*format!("{around}/vars"))
                .map(|&name| name.to_owned()),
        );
        path = around;
    }
    names.reverse();
    names
}

/// Whether `t` may be codes of a kernel.
fn is_code(t: &TensorInfo) -> bool {
    matches!(t.dtype, Dtype::I8 | Dtype::U8) && t.shape.len() > 1
}

/// The roles of the variables of a layer that is not decoded: none of its codes is a weight.
fn refused(layer: Option<&FoundLayer>, variables: &[&TensorInfo]) -> Vec<GraphRole> {
    let op = match layer {
        Some(FoundLayer { class, mode: Some(mode), .. }) => {
            format!("that of Keras's `{class}` in mode {mode}")
        }
        Some(FoundLayer { class, .. }) => {
            format!("that of Keras's `{class}` in a mode that neither config nor sizes tell")
        }
        None => UNKNOWN.to_owned(),
    };
    let role = |t: &&TensorInfo| match is_code(t) {
        true => GraphRole::Codes(Box::new(GraphCodes::new(&op))),
        false => GraphRole::Plain,
    };
    variables.iter().map(role).collect()
}

/// The roles of the variables of a layer that is decoded.
fn roles_of(layer: &FoundLayer, variables: &[&TensorInfo]) -> Option<Vec<GraphRole>> {
    let (mode, kernel) = (layer.mode.as_deref()?, layer.kernel.clone()?);
    if let Some(rest) = mode.strip_prefix("gptq/") {
        let bits = rest.split('/').next()?.parse().ok()?;
        return indexed_roles(&kernel, bits, variables);
    }
    let (bits, block) = match mode.split_once('/') {
        None if mode == "int8" => (8, None),
        None if mode == "int4" => (4, None),
        Some(("int4", "-1")) => (4, None),
        Some(("int4", block)) => (4, Some(block.parse::<u32>().ok().filter(|&n| n > 0)?)),
        _ => return None,
    };
    let may_be_old = mode == "int4";
    let own = QuantizedKernel { kernel, bits, block, may_be_old, has_index: block.is_some() };
    // A matrix of its own for the way back is behind the first, whose index it shares. Its codes of
    // four bits are packed as all were once.
    let (first, second) = if block.is_some() { (4, 3) } else { (2, 2) };
    match layer.reversed.clone() {
        Some(kernel) if variables.len() == first + second => {
            let (there, back) = variables.split_at(first);
            let mut roles = own.roles(there)?;
            let way_back =
                QuantizedKernel { kernel, bits, block, may_be_old: true, has_index: false };
            roles.extend(way_back.roles(back)?);
            Some(roles)
        }
        _ => own.roles(variables),
    }
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
    let (summed, kept) = kernel.shape.split_at_checked(kernel.reduced)?;
    let shape = [fill(summed, rows)?, fill(kept, cols)?].concat();
    if kernel.is_by_row || kernel.ahead > 0 || !matches!(bits, 2 | 3 | 4 | 8) {
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
    /// Whether the number of each row's block is behind the scales.
    has_index: bool,
}

/// How codes lie: the decoded shape, and its rows and columns as a matrix.
struct KerasCodes {
    shape: Vec<usize>,
    rows: usize,
    cols: usize,
    /// Rows of the matrix that share scales, if not all of them do.
    block: usize,
    /// How far the two rows are apart that share bytes; 0 if none do.
    apart: usize,
}

impl QuantizedKernel {
    /// The roles of `variables`: codes, bias, scales, and of blocks zero points and the number of
    /// each row's block.
    fn roles(&self, variables: &[&TensorInfo]) -> Option<Vec<GraphRole>> {
        let [codes, rest @ ..] = variables else {
            return None;
        };
        let behind = usize::from(self.block.is_some()) + usize::from(self.has_index);
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
        let block = match self.block {
            Some(block) => i64::from(block),
            None => i64::try_from(lie.block).ok()?,
        };
        let axis = i64::from(self.kernel.is_by_row == (block > 0));
        let mut described = GraphCodes {
            scale: Some(scale.name.clone()),
            zero_point: self.block.map(|_| rest[at + 1].name.clone()),
            shape: Some(lie.shape),
            ..GraphCodes::along(axis, block)
        };
        let numbers = [
            (GraphCodes::ROWS, lie.rows),
            (GraphCodes::COLS, lie.cols),
            (GraphCodes::BITS, self.bits),
            (GraphCodes::DIVIDES, usize::from(self.block.is_none())),
            (GraphCodes::PAIRED, lie.apart),
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
        let KerasKernel { ref shape, reduced, ahead, .. } = self.kernel;
        let agrees = |(known, &stored): (&Option<usize>, &usize)| known.is_none_or(|n| n == stored);
        if shape.len() != codes.shape.len() || !shape.iter().zip(&*codes.shape).all(agrees) {
            return None;
        }
        // Axes before those that are summed over are rows with scales of their own.
        let (rows, cols) = codes.shape.split_at_checked(ahead + reduced)?;
        let block = if ahead > 0 { count(&rows[ahead..])? } else { 0 };
        Some(KerasCodes {
            shape: codes.shape.to_vec(),
            rows: count(rows)?,
            cols: count(cols)?,
            block,
            apart: 0,
        })
    }

    /// Codes of four bits, two in a byte: of two columns of a matrix, the last of which may be alone
    /// in its byte, or of two rows. `None` if the sizes do not tell which, or are others.
    fn nibbles(&self, codes: &TensorInfo, scale: &TensorInfo) -> Option<KerasCodes> {
        let KerasKernel { is_by_row, ref shape, reduced, ahead } = self.kernel;
        let (before, summed) = (shape.get(..ahead)?, shape.get(ahead..ahead + reduced)?);
        let kept = [before, shape.get(ahead + reduced..)?].concat();
        let known =
            |sizes: &[Option<usize>]| count(&sizes.iter().copied().collect::<Option<Vec<_>>>()?);
        let rows = known(summed);
        let cols = match known(&kept) {
            None if !is_by_row => *scale.shape.last()?,
            cols => cols?,
        };
        let decoded = |rows| {
            let (mut shape, summed) = (fill(&kept, cols)?, fill(summed, rows)?);
            shape.splice(ahead..ahead, summed);
            Some(shape)
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
                block: 0,
                apart: 0,
            });
        }
        // Rows that share bytes are neighbours along the first axis that is summed over.
        let (rows, apart) = (rows?, known(summed.get(1..)?)?);
        let (&first, rest) = codes.shape.split_first()?;
        let is_paired = self.may_be_old && !is_by_row && ahead == 0;
        let fits = first == (*summed.first()?)?.div_ceil(2)
            && Some(count(rest)?) == apart.checked_mul(cols)
            && codes.shape.len() == shape.len();
        (is_paired && fits && apart > 0)
            .then(|| Some(KerasCodes { shape: decoded(rows)?, rows, cols, block: 0, apart }))?
    }
}

/// `sizes` whose product is `all`, if at most one of them is not known.
fn fill(sizes: &[Option<usize>], all: usize) -> Option<Vec<usize>> {
    let unknown = sizes.iter().filter(|size| size.is_none()).count();
    let known = count(&sizes.iter().copied().flatten().collect::<Vec<_>>())?;
    let fits = match unknown {
        0 => known == all,
        1 => known > 0 && all.is_multiple_of(known),
        _ => false,
    };
    let size = |size: &Option<usize>| size.unwrap_or_else(|| all / known.max(1));
    fits.then(|| sizes.iter().map(size).collect())
}

/// The product of `sizes`.
fn count(sizes: &[usize]) -> Option<usize> {
    sizes
        .iter()
        .try_fold(1usize, |n, &size| n.checked_mul(size))
}
