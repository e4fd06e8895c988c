//! DFloat11: BF16 weights of which the exponents are Huffman-coded. A module has one stream for all
//! of its weights.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.encoded_exponent` U8 | codes, in chunks of `threads_per_block * bytes_per_thread` bytes |
//! | `P.sign_mantissa` U8 `[n]` or `[out, in]` | sign and seven bits of mantissa of each value |
//! | `P.luts` U8 `[tables + 1, 256]` | the code, and lengths |
//! | `P.output_positions` U8 | U32 for each chunk, the index of its first value, and n |
//! | `P.gaps` U8 | five bits for each 8 bytes, the bit at which the first code in them begins |
//! | `P.split_positions` I64 | indices of the first values of the second weight and further ones |
//!
//! Names and shapes of the weights are not stored. `pattern_dict` of the config has the names, and
//! the sizes of biases and in `config.json` the shapes. Of a single weight `sign_mantissa` may have
//! the shape, as this crate's encoder writes it: the library asks for the number of its values
//! alone.
//!
//! Layout: dfloat11 `dfloat11.py`, `dfloat11_utils.py`, `decode.cu`.

mod stream;

use std::ops::Range;
use std::sync::Arc;

use self::stream::{StoredStream, Stream};
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::dfloat11::{JoinBf16, JoinedFloats};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::{
    Buffers, Decode, Grid, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile, base_of,
    refused, wrong,
};
use crate::simd::{Level, dispatch, perform};
use crate::{Dtype, Result};

pub(super) struct DFloat11;

/// Name in messages.
const FAMILY: &str = "DFloat11";

/// Most columns of a grid of the weight's rows and columns; wider weights are a single row, which
/// may be cut anywhere.
const MAX_COLS: usize = 1 << 16;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[],
    codes: &[".encoded_exponent", ".sign_mantissa"],
    // The other names could be those of anybody's tensors.
    companions: &[
        (Ends(".output_positions"), TensorRole::GroupIndex),
        (Ends(".split_positions"), TensorRole::GroupIndex),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for DFloat11 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::DFloat11
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "encoded_exponent") else {
            return Ok(None);
        };
        let stream = StoredStream {
            codes: *t,
            rest: all.need(t, base, "sign_mantissa")?,
            tables: all.need(t, base, "luts")?,
            positions: all.need(t, base, "output_positions")?,
            gaps: all.need(t, base, "gaps")?,
        };
        let splits = all.at(base, "split_positions");
        let module = base.trim_end_matches('.');
        let config = all.config.dfloat11().map_err(|e| refused(t, FAMILY, e))?;
        let paths = config.weights(module).map_err(|e| refused(t, FAMILY, e))?;
        let mut names: Vec<String> = paths
            .iter()
            .map(|path| format!("{base}{path}.weight"))
            .collect();
        if names.is_empty() {
            names.push(format!("{base}weight"));
        }
        let n = stream.rest.elements();
        let bounds = bounds(t, splits.as_ref(), names.len(), n)?;
        let stream = Arc::new(stream.checked(config.chunk_bytes)?);
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Quantized, stream.stored.rest),
            (TensorRole::QuantMap, stream.stored.tables),
            (TensorRole::GroupIndex, stream.stored.positions),
            (TensorRole::GroupIndex, stream.stored.gaps),
        ];
        parts.extend(splits.map(|splits| (TensorRole::GroupIndex, splits)));
        let count = names.len();
        let mut groups = Vec::with_capacity(count);
        for (name, bounds) in names.into_iter().zip(bounds.windows(2)) {
            let (first, len) = (bounds[0], bounds[1] - bounds[0]);
            let stored = (count == 1).then(|| stream.stored.rest.shape());
            let shape = find_shape(t, (&name, len), stored, all)?;
            let decoder = DFloat11Weight { stream: stream.clone(), first, shape };
            groups.push(Group::new(
                name,
                shape.to_vec(),
                QuantScheme::DFloat11,
                parts.clone(),
                Box::new(decoder),
            ));
        }
        let mut groups = groups.into_iter();
        let first = groups.next();
        Ok(first.map(|first| first.with_others(groups.collect())))
    }
}

/// Indices of the first values of `count` weights in a stream of `n` values, and n.
///
/// # Errors
/// The stored indices are not as many, or not in order.
fn bounds(
    t: &Tensor<'_>,
    splits: Option<&Tensor<'_>>,
    count: usize,
    n: usize,
) -> Result<Vec<usize>> {
    let stored = splits.map_or(0, Tensor::elements);
    if stored + 1 != count || splits.is_some_and(|splits| splits.dtype() != Dtype::I64) {
        let what = format!(
            "its config names {count} weights, and its `split_positions` cuts it into {}",
            stored + 1
        );
        return Err(wrong(t, what));
    }
    let mut bytes = vec![0; stored * 8];
    if let Some(splits) = splits.filter(|_| stored > 0) {
        splits.part().read_at(0, &mut bytes)?;
    }
    let mut bounds = vec![0];
    for &split in bytes.as_chunks().0 {
        let split = i64::from_le_bytes(split);
        let last = bounds.last().copied().unwrap_or(0);
        match usize::try_from(split) {
            Ok(split) if last < split && split < n => bounds.push(split),
            _ => {
                let what = format!("`split_positions` has {split} after {last}, of {n} values");
                return Err(wrong(t, what));
            }
        }
    }
    bounds.push(n);
    Ok(bounds)
}

/// The shape of the weight `name` of `len` values: that in which its signs are stored if they are a
/// matrix, or from the bias of its layer and from config.json.
///
/// # Errors
/// Neither tells, or they contradict each other.
fn find_shape(
    t: &Tensor<'_>,
    (name, len): (&str, usize),
    stored: Option<&[usize]>,
    all: &Index<'_>,
) -> Result<[usize; 2]> {
    let module = name.strip_suffix(".weight").unwrap_or_default();
    let bias = all
        .at(module, ".bias")
        .filter(|bias| bias.shape().len() == 1)
        .map(|bias| bias.elements());
    let [outputs, inputs] = all.config.layer_sizes(module);
    let outputs = bias.or(outputs);
    let other = |known: usize| {
        len.checked_div(known)
            .filter(|&n| n > 0 && n * known == len)
    };
    let found = match (outputs, inputs) {
        (Some(outputs), Some(inputs)) => other(outputs)
            .filter(|&n| n == inputs)
            .map(|_| [outputs, inputs]),
        (Some(outputs), None) => other(outputs).map(|inputs| [outputs, inputs]),
        (None, Some(inputs)) => other(inputs).map(|outputs| [outputs, inputs]),
        (None, None) => None,
    };
    // Sizes of config.json that do not multiply to the values there are do not belong to this
    // layer, and contradict nothing.
    if let Some(&[rows, cols]) = stored {
        if bias.is_some_and(|n| n != rows) || found.is_some_and(|shape| shape != [rows, cols]) {
            let what = format!(
                "`sign_mantissa` is [{rows}, {cols}], and a bias or config.json tells of another shape of `{name}`"
            );
            return Err(refused(t, FAMILY, what));
        }
        return Ok([rows, cols]);
    }
    found.ok_or_else(|| {
        let what = format!(
            "`{name}` of {len} values is stored without its shape, which neither a bias nor config.json tells beyond doubt"
        );
        refused(t, FAMILY, what)
    })
}

/// The decoder of a weight: values `first..` of its module's stream.
struct DFloat11Weight<'m> {
    stream: Arc<Stream<'m>>,
    first: usize,
    shape: [usize; 2],
}

impl Decode for DFloat11Weight<'_> {
    fn grid(&self) -> Grid {
        let [rows, cols] = self.shape;
        // Whole rows: the values of a tile follow each other in the stream.
        let (rows, cols, col_align) = if cols <= MAX_COLS {
            (rows, cols, cols)
        } else {
            (1, rows * cols, 1)
        };
        Grid {
            rows,
            cols,
            row_align: 1,
            col_align,
            // A byte with sign and mantissa, one of the exponent, and less than one of its code.
            load_bits: 24.0,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let cols = self.grid().cols;
        let first = self.first + tile.rows.start * cols + tile.cols.start;
        let range = first..first + tile.values();
        let rest = self.stream.stored.rest.part();
        buffers.bytes.load_at(&rest, first as u64, range.len())?;
        let Buffers { staging, symbols, .. } = buffers;
        self.stream.exponents(range, staging, symbols)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let width = tile.cols.len();
        let range = (rows.start - tile.rows.start) * width..(rows.end - tile.rows.start) * width;
        let floats = JoinedFloats {
            exponents: &buffers.symbols[range.clone()],
            rest: &buffers.bytes[range],
        };
        match out {
            Out::Bf16(out) => perform(level, &mut JoinBf16 { floats, out }),
            out => dispatch(level, &floats, out),
        }
    }
}
