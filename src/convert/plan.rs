//! The plan: every output tensor with its offset, and every job, before the first byte is read.

use std::collections::HashMap;

use super::report::{Report, count};
use crate::model::{ParsedModel, Part};
use crate::scheme::{Decode, Grid, Item, QuantScheme, Resolution, Tile};
use crate::write::safetensors::{Entry, layout};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Values that are decoded at once: the output of a slab stays in the cache until it is written.
pub(super) const SLAB_VALUES: usize = 128 << 10;

/// Bytes that a tile loads at most. Transposed input is read in strips of a tile's height, so those tiles
/// are as tall as this allows.
const LOAD_BYTES: f64 = 2.5 * 1024.0 * 1024.0;

/// Rows of a transposed tile at most, which bounds what transposing takes.
const TILE_ROWS: usize = 4096;

/// Bytes of a tensor that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// What a body is made from.
pub(super) enum Body<'m> {
    /// Stored bytes, as they are.
    Copy(Part<'m>),
    /// Decoded values.
    Decode(Box<dyn Decode + 'm>),
}

/// One output tensor.
pub(super) struct Output<'m> {
    pub body: Body<'m>,
    /// Absolute offset in the output.
    pub offset: u64,
    /// How it is cut.
    pub cut: Cut,
}

/// A grid cut into tiles, row of tiles by row of tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub rows: usize,
    pub cols: usize,
    pub tile_rows: usize,
    pub tile_cols: usize,
}

/// Everything about an output that is known before the work.
pub(crate) struct Plan<'m> {
    pub header: Vec<u8>,
    pub file_len: u64,
    pub target: TargetDtype,
    pub report: Report,
    pub(super) outputs: Vec<Output<'m>>,
    /// Number of the first job of each output, and at the end the number of jobs.
    pub(super) first_job: Vec<usize>,
}

impl<'m> Plan<'m> {
    /// Plans the recovery of `model`, or says why it cannot be recovered.
    pub(crate) fn new(model: &'m ParsedModel, target: TargetDtype) -> Result<Self> {
        let resolution = model.resolve().into_result()?;
        let mut metadata = model.metadata.clone();
        metadata.retain(|key, _| !key.starts_with("gptq_"));
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let entries: Vec<Entry<'_>> = resolution.items.iter().map(|item| entry(item, target)).collect();
        unique(&entries)?;
        let layout = layout(&entries, &metadata)?;
        drop(entries);
        let report = report(model, &resolution, target, layout.file_len);
        let mut outputs = Vec::with_capacity(resolution.items.len());
        let mut first_job = vec![0];
        for (item, &offset) in resolution.items.into_iter().zip(&layout.offsets) {
            let (body, cut) = match item {
                Item::Plain(t) => (Body::Copy(t.part()), Cut::of_bytes(t.info().len as usize, t.dtype())),
                Item::Group(group) => {
                    let cut = Cut::of_grid(&group.decoder.grid());
                    (Body::Decode(group.decoder), cut)
                }
            };
            first_job.push(first_job[first_job.len() - 1] + cut.tiles());
            outputs.push(Output { body, offset, cut });
        }
        Ok(Self { header: layout.header, file_len: layout.file_len, target, report, outputs, first_job })
    }

    /// Number of jobs.
    pub(super) fn jobs(&self) -> usize {
        self.first_job[self.first_job.len() - 1]
    }

    /// The output and the tile that job `job` makes.
    pub(super) fn job(&self, job: usize) -> (&Output<'m>, Tile) {
        let i = self.first_job.partition_point(|&first| first <= job) - 1;
        let output = &self.outputs[i];
        (output, output.cut.tile(job - self.first_job[i]))
    }
}

impl Cut {
    fn of_bytes(len: usize, dtype: Dtype) -> Self {
        Self { rows: 1, cols: len, tile_rows: 1, tile_cols: round_down(COPY_BYTES, dtype.type_size().unwrap_or(1)) }
    }

    /// Tiles that load at most `LOAD_BYTES` and whose rows fit a slab.
    fn of_grid(grid: &Grid) -> Self {
        let loadable = (LOAD_BYTES * 8.0 / grid.load_bits) as usize;
        let values = if grid.transposed { loadable } else { loadable.min(2 * SLAB_VALUES) };
        let widest = (values / grid.row_align).clamp(1, SLAB_VALUES);
        let tile_cols = if grid.cols <= widest { grid.cols } else { round_down(widest, grid.col_align) };
        let tallest = if grid.transposed { TILE_ROWS } else { usize::MAX };
        let tile_rows = round_down((values / tile_cols.max(1)).min(tallest), grid.row_align).min(grid.rows);
        Self { rows: grid.rows, cols: grid.cols, tile_rows: tile_rows.max(1), tile_cols: tile_cols.max(1) }
    }

    /// Number of tiles.
    fn tiles(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        self.rows.div_ceil(self.tile_rows) * self.cols.div_ceil(self.tile_cols)
    }

    fn tile(&self, i: usize) -> Tile {
        let across = self.cols.div_ceil(self.tile_cols);
        let (row, col) = (i / across * self.tile_rows, i % across * self.tile_cols);
        let (end_row, end_col) = ((row + self.tile_rows).min(self.rows), (col + self.tile_cols).min(self.cols));
        Tile { rows: row..end_row, cols: col..end_col }
    }
}

/// `n` rounded down to a multiple of `align`, but at least one.
fn round_down(n: usize, align: usize) -> usize {
    (n - n % align).max(align)
}

fn entry<'a>(item: &'a Item<'_>, target: TargetDtype) -> Entry<'a> {
    match item {
        Item::Plain(t) => Entry { name: t.name(), dtype: t.dtype(), shape: t.shape() },
        Item::Group(group) => Entry { name: &group.name, dtype: target.dtype(), shape: &group.shape },
    }
}

fn unique(entries: &[Entry<'_>]) -> Result<()> {
    let mut seen = HashMap::with_capacity(entries.len());
    for e in entries {
        let this: (Dtype, &[usize]) = (e.dtype, e.shape);
        if let Some((dtype, shape)) = seen.insert(e.name, this) {
            let what = format!("the output would have it twice, as {dtype} {shape:?} and as {} {:?}", e.dtype, e.shape);
            return Err(AnamnesisError::parse(format!("tensor `{}`: {what}", e.name)));
        }
    }
    Ok(())
}

fn report(model: &ParsedModel, resolution: &Resolution<'_>, to: TargetDtype, output_bytes: u64) -> Report {
    let mut report = Report {
        to,
        schemes: Vec::new(),
        passthrough: 0,
        dropped: resolution.dropped.iter().map(|t| t.name().to_owned()).collect(),
        notes: Vec::new(),
        output_bytes,
    };
    for group in resolution.groups() {
        count(&mut report.schemes, group.scheme);
    }
    report.passthrough = resolution.items.len() - report.recovered();
    let cast = resolution.groups().filter(|group| matches!(group.scheme, QuantScheme::CastFp8 { .. })).count();
    if cast > 0 {
        report
            .notes
            .push(format!("{cast} FP8 tensors have no scale, and nothing says that they should: read as plain casts"));
    }
    let gptq = report.schemes.iter().any(|s| s.scheme == QuantScheme::Gptq);
    if gptq && model.config.text(&["checkpoint_format", "format", "packing_format"]).is_none() {
        report.notes.push("nothing says the version of GPTQ's zero points: read as version 1".to_owned());
    }
    if !report.dropped.is_empty() {
        let n = report.dropped.len();
        report.notes.push(format!("{n} activation scales and markers left out, e.g. `{}`", report.dropped[0]));
    }
    report
}
