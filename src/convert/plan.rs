//! The plan: every output tensor with its offset, and every job, before the first byte is read.

use std::collections::HashMap;
use std::ops::Range;

use super::container;
use super::draft::{Draft, Drafts, drafts};
use super::options::ConvertOptions;
use super::report::Report;
use super::sum::Sums;
use crate::containers::model::{ParsedModel, Part};
use crate::scheme::{Decode, Grid, Tile};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Values that are decoded at once: the output of a slab stays in the cache until it is written.
pub(super) const SLAB_VALUES: usize = 128 << 10;

/// Bytes that a tile loads at most. Transposed input is read in strips of a tile's height, so those tiles
/// are as tall as this allows.
const LOAD_BYTES: f64 = 2.5 * 1024.0 * 1024.0;

/// Rows of a transposed tile at most, which bounds what transposing takes.
const TILE_ROWS: usize = 4096;

/// Bytes that are gathered at once.
pub(super) const GATHER_BYTES: usize = 2 << 20;

/// Bytes of a tensor that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// What a body is made from.
pub(super) enum Body<'m> {
    /// Stored bytes, as they are.
    Copy(Part<'m>),
    /// Bytes that come as a stream: one job.
    Stream(Part<'m>),
    /// Elements that lie apart; the columns of a tile are so many of the last dimensions.
    Gather(Part<'m>, usize),
    /// Decoded values.
    Decode(Box<dyn Decode + 'm>),
    /// Encoded values, decoded first if need be: the first of the stored tensors that come of them.
    #[cfg(feature = "lethe")]
    Encode(Box<super::encode::Encoding<'m>>),
    /// One more of them, made with the first.
    #[cfg(feature = "lethe")]
    Encoded,
}

/// One output tensor.
pub(super) struct Output<'m> {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub body: Body<'m>,
    /// Which of the output's files it is in.
    pub file: usize,
    /// Absolute offset there.
    pub offset: u64,
    /// Type of decoded values.
    pub target: TargetDtype,
    /// How it is cut.
    pub cut: Cut,
    /// Inputs whose stored bytes have to be checked by themselves, before the first tile.
    pub verify: Vec<Part<'m>>,
    pub sums: Sums,
}

/// A grid cut into tiles, row of tiles by row of tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub rows: usize,
    pub cols: usize,
    pub tile_rows: usize,
    pub tile_cols: usize,
}

/// One file of the output.
pub(crate) struct PlannedFile {
    /// Bytes that are known up front, with their offsets.
    pub pieces: Vec<(u64, Vec<u8>)>,
    pub len: u64,
}

/// Everything about an output that is known before the work.
pub(crate) struct Plan<'m> {
    pub files: Vec<PlannedFile>,
    pub report: Report,
    /// What `config.json` says of how the output is quantized: keys and their value.
    pub(super) quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// Bytes that the workers write.
    pub(super) data_len: u64,
    /// Whether the files are the shards of a directory.
    pub is_directory: bool,
    pub(super) outputs: Vec<Output<'m>>,
    /// Number of the first job of each output, and at the end the number of jobs.
    pub(super) first_job: Vec<usize>,
}

impl<'m> Plan<'m> {
    /// Plans the conversion of `model`, or says why it cannot be converted.
    pub(crate) fn new(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Self> {
        let Drafts {
            drafts,
            mut report,
            quantization,
        } = drafts(model, options)?;
        unique(&drafts)?;
        let (layouts, files_of) =
            container::layout(model, &drafts, quantization.as_ref(), options, &mut report)?;
        report.output_bytes = layouts.iter().map(|l| l.file_len).sum();
        let mut outputs = Vec::with_capacity(drafts.len());
        let mut first_job = vec![0];
        let mut places = layouts.iter().map(|layout| layout.offsets.iter());
        let mut offsets = places.next().unwrap_or_default();
        let mut last = 0;
        let mut patches = layouts
            .iter()
            .flat_map(|layout| layout.patches.iter().cloned());
        let data_len = drafts.iter().map(|d| d.len).sum();
        for (draft, file) in drafts.into_iter().zip(files_of) {
            if file != last {
                (last, offsets) = (file, places.next().unwrap_or_default());
            }
            let offset = offsets.next().copied().unwrap_or_default();
            let target = TargetDtype::of(draft.dtype).unwrap_or(options.run.to);
            let Draft {
                name,
                dtype,
                shape,
                body,
                cut,
                verify,
                ..
            } = draft;
            first_job.push(first_job[first_job.len() - 1] + body.jobs(&cut));
            outputs.push(Output {
                name,
                dtype,
                shape,
                body,
                file,
                offset,
                target,
                cut,
                verify,
                sums: Sums::new(patches.next()),
            });
        }
        let files = layouts
            .into_iter()
            .map(|l| PlannedFile {
                pieces: l.pieces,
                len: l.file_len,
            })
            .collect();
        let is_directory = options.is_directory(model);
        Ok(Self {
            files,
            report,
            quantization,
            data_len,
            is_directory,
            outputs,
            first_job,
        })
    }

    /// Every output.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.outputs.len()
    }

    /// The outputs in file `file`.
    pub(super) fn outputs_of(&self, file: usize) -> Range<usize> {
        let start = self.outputs.partition_point(|output| output.file < file);
        start..self.outputs.partition_point(|output| output.file <= file)
    }

    /// The number of the output that job `job` is about, and the job's number there.
    pub(super) fn job(&self, job: usize) -> (usize, usize) {
        let i = self.first_job.partition_point(|&first| first <= job) - 1;
        (i, job - self.first_job[i])
    }
}

impl Body<'_> {
    /// Whether the output before it, or one before that, makes it.
    pub(super) fn is_made_with_another(&self) -> bool {
        #[cfg(feature = "lethe")]
        return matches!(self, Self::Encoded);
        #[cfg(not(feature = "lethe"))]
        false
    }

    /// Number of jobs: one for each tile, as a rule.
    fn jobs(&self, cut: &Cut) -> usize {
        match self {
            #[cfg(feature = "lethe")]
            Self::Encode(encoding) => encoding.looks() + encoding.bands.jobs(),
            _ => cut.tiles(),
        }
    }
}

impl Cut {
    /// Nothing to do.
    #[cfg(feature = "lethe")]
    pub(super) const NONE: Self = Self {
        rows: 0,
        cols: 0,
        tile_rows: 1,
        tile_cols: 1,
    };

    pub(super) fn whole(len: usize) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: len.max(1),
        }
    }

    /// Rows of the outer dimensions, columns of the `inner` last ones, in tiles of bounded size.
    pub(super) fn of_strided(shape: &[usize], size: usize, inner: usize) -> Self {
        let (outer, inner) = shape.split_at(shape.len() - inner);
        let (rows, cols) = (outer.iter().product(), inner.iter().product());
        Self {
            rows,
            cols,
            tile_rows: (GATHER_BYTES / (cols * size).max(1)).max(1),
            tile_cols: cols.max(1),
        }
    }

    pub(super) fn of_bytes(len: usize, dtype: Dtype) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: round_down(COPY_BYTES, dtype.type_size().unwrap_or(1)),
        }
    }

    /// Tiles that load at most `LOAD_BYTES` and whose rows fit a slab.
    pub(super) fn of_grid(grid: &Grid) -> Self {
        let loadable = (LOAD_BYTES * 8.0 / grid.load_bits) as usize;
        let values = if grid.transposed {
            loadable
        } else {
            loadable.min(2 * SLAB_VALUES)
        };
        let widest = (values / grid.row_align).clamp(1, SLAB_VALUES);
        let tile_cols = if grid.cols <= widest {
            grid.cols
        } else {
            round_down(widest, grid.col_align)
        };
        let tallest = if grid.transposed {
            TILE_ROWS
        } else {
            usize::MAX
        };
        let tile_rows =
            round_down((values / tile_cols.max(1)).min(tallest), grid.row_align).min(grid.rows);
        Self {
            rows: grid.rows,
            cols: grid.cols,
            tile_rows: tile_rows.max(1),
            tile_cols: tile_cols.max(1),
        }
    }

    /// Number of tiles.
    pub(super) fn tiles(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        self.rows.div_ceil(self.tile_rows) * self.across()
    }

    /// Number of tiles beside each other.
    pub(super) fn across(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    /// Tile number `i`.
    pub(super) fn tile(&self, i: usize) -> Tile {
        let across = self.across();
        let (row, col) = (i / across * self.tile_rows, i % across * self.tile_cols);
        let (end_row, end_col) = (
            (row + self.tile_rows).min(self.rows),
            (col + self.tile_cols).min(self.cols),
        );
        Tile {
            rows: row..end_row,
            cols: col..end_col,
        }
    }
}

/// `n` rounded down to a multiple of `align`, but at least one.
pub(super) fn round_down(n: usize, align: usize) -> usize {
    (n - n % align).max(align)
}

fn unique(drafts: &[Draft<'_>]) -> Result<()> {
    let mut seen = HashMap::with_capacity(drafts.len());
    for d in drafts {
        let this: (Dtype, &[usize]) = (d.dtype, &d.shape);
        if let Some((dtype, shape)) = seen.insert(d.name.as_str(), this) {
            let what = format!(
                "the output would have it twice, as {dtype} {shape:?} and as {} {:?}",
                d.dtype, d.shape
            );
            return Err(AnamnesisError::parse(format!(
                "tensor `{}`: {what}",
                d.name
            )));
        }
    }
    Ok(())
}
