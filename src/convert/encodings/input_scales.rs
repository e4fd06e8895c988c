//! Scales of the inputs of layers (AWQ): which norms and matrices of a model share them, and how the
//! two get them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::config::Texts;
use crate::convert::encode::dtype_of;
use crate::convert::options::ConvertOptions;
use crate::convert::report::Report;
use crate::error::counted;
use crate::families::{PreNorm, find_pre_norms};
use crate::lethe::{
    Decision, Encode, Imatrix, InputReader, InputScales, NormValues, SampledRows, WeightInfo,
    find_input_scales,
};
use crate::model::{ParsedModel, TensorRole};
use crate::remember::layout::vector::{KnownRow, VectorValues};
use crate::remember::{Group, QuantScheme, Resolution, ResolvedItem, values_of_rows};
use crate::threads::map_numbers;
use crate::{AnamnesisError, ConvertTarget, Result, TargetDtype};

/// Values of a matrix whose errors choose its scales, in pieces of rows that lie together.
const SAMPLED_VALUES: usize = 1 << 17;
const PIECES: usize = 4;

/// Values of a piece, whose rows may be decoded together alone.
const MOST_VALUES: usize = 1 << 20;

/// Scales of a model.
#[derive(Default)]
pub(super) struct ScaledInputs {
    /// The norms, with their values and their types.
    norms: Vec<(usize, Arc<[f32]>, TargetDtype)>,
    /// What columns of matrices are multiplied with.
    columns: HashMap<usize, Arc<[f32]>>,
}

impl ScaledInputs {
    /// The scales of the norms of which all readers are encoded by `choices`.
    ///
    /// # Errors
    /// `Usage` if the class of the model is not known; those of reading and of encoding.
    pub(super) fn find(
        model: &ParsedModel,
        (resolution, choices): (&Resolution<'_>, &[Decision]),
        imatrix: &Imatrix,
        options: &ConvertOptions,
        report: &mut Report,
    ) -> Result<Self> {
        let norms = norms_of(model, resolution, options)?;
        let names = resolution.items.iter().map(ResolvedItem::name);
        let biases: HashSet<&str> = names.filter(|name| name.ends_with(".bias")).collect();
        let of_norm = |at: usize, (): &mut ()| {
            options.run.cancel.check()?;
            let norm = &norms[at];
            let item = &resolution.items[norm.norm];
            let base = item.name().strip_suffix("weight").unwrap_or_default();
            let has_bias = biases.contains(&*format!("{base}bias"));
            let (Some(values), false) = (values_of(item, norm.offset, options)?, has_bias) else {
                return Ok(None);
            };
            let mut readers = Vec::with_capacity(norm.readers.len());
            for &at in &norm.readers {
                match reader(&resolution.items[at], &choices[at], imatrix)? {
                    Some(reader) if reader.rows.cols == values.values.len() => readers.push(reader),
                    _ => return Ok(None),
                }
            }
            let found = find_input_scales(&readers, &values, options.run.level)?;
            Ok(Some((values.dtype, found)))
        };
        let found = map_numbers(norms.len(), options.run.worker_threads(), of_norm)?;
        let (mut scaled, mut without, mut refused) = (Self::default(), 0, None);
        for (norm, found) in norms.iter().zip(found) {
            match found {
                Some((dtype, Some(InputScales { columns, norm: divided }))) => {
                    scaled.norms.push((norm.norm, divided, dtype));
                    let readers = norm.readers.iter().map(|&at| (at, columns.clone()));
                    scaled.columns.extend(readers);
                }
                Some((_, None)) => without += 1,
                None => refused = refused.or(Some(norm)),
            }
        }
        let what = format!(
            "AWQ scaling: {} divided, columns of {} multiplied",
            counted(scaled.norms.len(), "norm"),
            matrices(scaled.columns.len()),
        );
        report.notes.push(what);
        if without > 0 {
            let what =
                format!("AWQ scaling: of {} no scale lowers the error", counted(without, "norm"));
            report.notes.push(what);
        }
        if let Some(norm) = refused {
            let name = resolution.items[norm.norm].name();
            report.notes.push(format!(
                "AWQ scaling: `{name}` and others stay, for not all that reads them is rounded with known importances"
            ));
        }
        Ok(scaled)
    }

    /// The importance matrix of the model with the scales.
    ///
    /// # Errors
    /// An entry does not fit its tensor.
    pub(super) fn imatrix(
        &self,
        imatrix: &Imatrix,
        resolution: &Resolution<'_>,
    ) -> Result<Imatrix> {
        let of_reader = |(&at, columns): (&usize, &Arc<[f32]>)| {
            let item = &resolution.items[at];
            (item.name().to_owned(), item.shape().to_vec(), columns.clone())
        };
        let scaled: Vec<_> = self.columns.iter().map(of_reader).collect();
        let scaled = scaled
            .iter()
            .map(|(name, shape, columns)| (&**name, &**shape, &**columns));
        imatrix.with_scaled_inputs(&scaled.collect::<Vec<_>>())
    }

    /// Divides the norms, and sets in `choices` what the columns are multiplied with.
    pub(super) fn apply(self, resolution: &mut Resolution<'_>, choices: &mut [Decision]) {
        for (at, factors) in self.columns {
            if let Decision::Encode { columns, .. } = &mut choices[at] {
                *columns = Some(factors);
            }
        }
        for (at, values, dtype) in self.norms {
            divide(&mut resolution.items[at], values, dtype);
            choices[at] = Decision::Keep("a norm that is divided".to_owned());
        }
    }
}

fn matrices(n: usize) -> String {
    match n {
        1 => "1 matrix".to_owned(),
        _ => format!("{n} matrices"),
    }
}

/// Replaces the values of a norm.
fn divide(item: &mut ResolvedItem<'_>, values: Arc<[f32]>, dtype: TargetDtype) {
    let len = values.len();
    let decoder = Box::new(VectorValues { matrix: Box::new(KnownRow(values)), len });
    let mut group = match item {
        ResolvedItem::Group(group) => {
            group.decoder = decoder;
            return (group.keeps, group.is_merged, group.is_copied) = (Some(dtype), true, false);
        }
        ResolvedItem::Plain(t) => Group::new(
            t.name().to_owned(),
            t.stored.shape(),
            QuantScheme::Unquantized,
            vec![(TensorRole::Passthrough, t.stored)],
            decoder,
        ),
    };
    (group.keeps, group.is_merged) = (Some(dtype), true);
    *item = ResolvedItem::from(group);
}

/// The norms of the model, and what reads them.
fn norms_of(
    model: &ParsedModel,
    resolution: &Resolution<'_>,
    options: &ConvertOptions,
) -> Result<Vec<PreNorm>> {
    let config = match model.model_directory() {
        Some(directory) if !model.is_gguf() => {
            Texts::new(&directory, &model.limits).json("config.json")?
        }
        _ => None,
    };
    let architecture = model.gguf().and_then(|gguf| gguf.architecture());
    let names = resolution.items.iter();
    let names: Vec<_> = names
        .map(|item| (item.name(), item.shape().len() > 1))
        .collect();
    find_pre_norms(config.as_ref(), architecture.as_deref(), &names, options.makes_mlx())
        .map_err(|reason| AnamnesisError::usage(format!("--awq-scaling: {reason}")))
}

/// The values of a norm; `None` if it is none of floats.
fn values_of(
    item: &ResolvedItem<'_>,
    offset: f32,
    options: &ConvertOptions,
) -> Result<Option<NormValues>> {
    let plain = item.plain_floats();
    let Some(decoder) = item.decoder(plain.as_ref()) else {
        return Ok(None);
    };
    if item.shape().len() != 1 || item.shape()[0] > SAMPLED_VALUES {
        return Ok(None);
    }
    let values = values_of_rows(decoder, 0..decoder.grid().rows, TargetDtype::F32)?;
    let dtype = match options.target {
        // Vectors of GGUF are F32.
        ConvertTarget::Gguf => TargetDtype::F32,
        _ => dtype_of(item, options.run.to),
    };
    Ok(Some(NormValues { values, offset, dtype }))
}

/// Some rows of a matrix, with the encoder of these; `None` if it is not encoded, its codes may move,
/// or nothing is known of its inputs.
fn reader(
    item: &ResolvedItem<'_>,
    choice: &Decision,
    imatrix: &Imatrix,
) -> Result<Option<InputReader>> {
    let rows = match item.shape() {
        [_, _] => sampled(item, Some(imatrix))?,
        _ => None,
    };
    let Some(rows) = rows else {
        return Ok(None);
    };
    let encoder = encoder_of_rows(item, choice, &rows)?;
    Ok(encoder.map(|encoder| InputReader { rows, encoder }))
}

/// The encoder of some rows of a matrix; `None` if it is not encoded, or its codes may move.
pub(super) fn encoder_of_rows(
    item: &ResolvedItem<'_>,
    choice: &Decision,
    rows: &SampledRows,
) -> Result<Option<Box<dyn Encode>>> {
    let Decision::Encode { method, .. } = choice else {
        return Ok(None);
    };
    // Codes that move lose nothing, and products have none.
    let moves = match item {
        ResolvedItem::Group(group) => {
            method.makes(group.scheme) || group.decoder.find_relay()?.is_some()
        }
        ResolvedItem::Plain(_) => false,
    };
    if moves {
        return Ok(None);
    }
    let [matrices, of_each, cols] = rows.shape();
    let shape = match item.shape() {
        [_, _] => vec![of_each, cols],
        _ => vec![matrices, of_each, cols],
    };
    let dtype = dtype_of(item, TargetDtype::BF16);
    let weight = WeightInfo { name: item.name(), shape: &shape, dtype };
    method.encoder(&weight).map(Some)
}

/// Some rows of a matrix, or of all matrices of a stack; `None` if an importance matrix that there is
/// says nothing of it. Without one, all inputs count the same.
pub(super) fn sampled(
    item: &ResolvedItem<'_>,
    imatrix: Option<&Imatrix>,
) -> Result<Option<SampledRows>> {
    let (matrices, rows, cols) = match (item.shape(), item.module()) {
        (&[rows, cols], None) => (1, rows, cols),
        (&[matrices, rows, cols], None) => (matrices, rows, cols),
        _ => return Ok(None),
    };
    let all = cols.saturating_mul(matrices);
    let (mut squares, mut means) = (vec![1.0; all], vec![0.0; all]);
    if let Some(imatrix) = imatrix {
        match imatrix.of_tensor(item.name(), item.shape())? {
            Some(known) if known.len() == all => squares.copy_from_slice(known),
            _ => return Ok(None),
        }
        if let Some(known) = imatrix.means_of_tensor(item.name(), item.shape())? {
            means.copy_from_slice(known);
        }
    }
    let plain = item.plain_floats();
    let Some(decoder) = item.decoder(plain.as_ref()) else {
        return Ok(None);
    };
    let grid = decoder.grid();
    let is_aligned = matrices == 1 || rows.is_multiple_of(grid.row_align.max(1));
    if grid.cols != cols || grid.rows != rows * matrices || !is_aligned {
        return Ok(None);
    }
    let pieces = pieces([matrices, rows, cols], grid.row_align);
    let mut values = vec![];
    for at in 0..matrices {
        for piece in &pieces {
            if piece.len().saturating_mul(cols) > MOST_VALUES {
                return Ok(None);
            }
            let piece = at * rows + piece.start..at * rows + piece.end;
            values.extend(values_of_rows(decoder, piece, TargetDtype::F32)?);
        }
    }
    // What is not finite is refused when it is encoded.
    let is_finite = values.iter().all(|x| x.is_finite());
    Ok(is_finite.then_some(SampledRows { matrices, cols, values, squares, means }))
}

/// Ranges of rows from all parts of a matrix, which is one of as many in a stack.
fn pieces([matrices, rows, cols]: [usize; 3], align: usize) -> Vec<Range<usize>> {
    let align = align.max(1);
    let of_matrix = SAMPLED_VALUES / matrices.max(1) / cols.max(1);
    let len = (of_matrix / PIECES).max(1).next_multiple_of(align);
    // A few rows of each matrix of a large stack.
    let pieces = PIECES.min(of_matrix).max(1);
    if rows <= len * pieces {
        return std::iter::once(0..rows).collect();
    }
    let ranges = (0..pieces).map(|piece| {
        let begin = rows / pieces * piece / align * align;
        begin..begin + len
    });
    ranges.collect()
}
