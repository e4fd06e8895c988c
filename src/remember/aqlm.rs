//! AQLM: a block of the weight is the sum of a vector of each codebook, times the scale of its row
//! of blocks.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.codes` I8 or I16 `[out / og, in / ig, codebooks]` | the lowest bits of each are a code |
//! | `P.codebooks` `[codebooks, 2^bits, og, ig]` | vectors |
//! | `P.scales` `[out / og, 1, 1, 1]` | scales |
//!
//! Layout and formula: aqlm `inference.py` (`QuantizedLinear`), `utils.py` (`_dequantize_weight`,
//! `unpack_int_data`).

use std::ops::Range;

use crate::config::QuantMethod;
use crate::model::{Part, Tensor};
use crate::remember::layout::vectors::{Codebooks, VectorCodes, VectorWeight, WeightNorm};
use crate::remember::seam::NamePattern::EndsIfQuantized;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{
    Floats, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile, base_of, read, refused,
    require_shape, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Aqlm;

/// Name in messages.
const FAMILY: &str = "AQLM";

/// Keys of the config, each with the number that the shapes tell.
const SIZES: [&str; 4] = ["num_codebooks", "nbits_per_codebook", "out_group_size", "in_group_size"];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Aqlm],
    codes: &[".codes"],
    // Models of sound have `codebooks` of their own, so that these are told by the config.
    companions: &[(EndsIfQuantized(".codebooks"), TensorRole::QuantMap)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Aqlm {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "codes") else {
            return Ok(None);
        };
        let Some(codebooks) = codebooks_of(t, base, all)? else {
            return Ok(None);
        };
        let scales = all.need(t, base, "scales")?;
        let (&[down, across, books], Dtype::I8 | Dtype::I16) = (t.shape(), t.dtype()) else {
            let what = "codes of AQLM are I8 or I16 [out / height, in / width, codebooks]";
            return Err(wrong(t, what));
        };
        let &[count, entries, height, width] = codebooks.shape() else {
            let what = "codebooks of AQLM are [codebooks, 2^bits, height, width]";
            return Err(wrong(&codebooks, what));
        };
        let stored = t.dtype().bits();
        let bits = bits_of_codes(t, &codebooks, [count, entries], books)?;
        // The library's layers for CPUs transpose their codes in memory, and may have been saved
        // so.
        require_shape(t, &scales, &[down, 1, 1, 1])?;
        check_config(t, base, [books, bits, height, width], all)?;
        let vector = height.checked_mul(width);
        let shape = down.checked_mul(height).zip(across.checked_mul(width));
        let (Some(vector), Some((rows, cols)), true) = (vector, shape, books > 0) else {
            return Err(wrong(t, "there is nothing in it, or its size overflows"));
        };
        let parts = vec![(Floats::ieee(&codebooks)?, codebooks.elements())];
        let Some(tables) = Codebooks::new(parts, vector, false) else {
            let what = format!("vectors of {vector} values, or so many, are not decoded");
            return Err(refused(&codebooks, FAMILY, what));
        };
        let codes = AqlmCodes {
            part: t.part(),
            bytes: stored / 8,
            bits,
            across,
            books,
            block: [height, width],
        };
        let floats = Floats::ieee(&scales)?;
        let inner = Box::new(Matrix { floats, cols: 1 });
        let decoder = VectorWeight {
            rows,
            cols,
            block: [height, width],
            terms: books,
            codebooks: tables,
            codes: Box::new(codes),
            norm: WeightNorm::Rows {
                factors: Box::new(ScalesOfBlocks { inner, height }),
                offsets: None,
            },
            has_whole_rows: false,
            row_align: 1,
        };
        let scheme = QuantScheme::Vectors { family: FAMILY, bits: books * bits, values: vector };
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::QuantMap, codebooks),
            (TensorRole::Scale, scales),
        ];
        let name = format!("{base}weight");
        let shape = vec![rows, cols];
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// The codebooks of the codes `t`, if these are AQLM's.
///
/// # Errors
/// They are missing, or no config tells that they are AQLM's.
fn codebooks_of<'m>(t: &Tensor<'m>, base: &str, all: &Index<'m>) -> Result<Option<Tensor<'m>>> {
    let is_named = all.config.quant_method() == Some(&QuantMethod::Aqlm);
    match all.at(base, "codebooks") {
        None if is_named => all.need(t, base, "codebooks").map(Some),
        // Vectors of many shapes fit the same codes.
        Some(_) if !is_named => {
            let what = "only its config (quant_method `aqlm`) tells the sizes of its vectors, and there is none";
            Err(refused(t, FAMILY, what))
        }
        found => Ok(found),
    }
}

/// The bits of a code that count, of `books` codes for each block and `count` codebooks of
/// `entries` vectors.
///
/// # Errors
/// The codes do not go with the codebooks.
fn bits_of_codes(
    t: &Tensor<'_>,
    codebooks: &Tensor<'_>,
    [count, entries]: [usize; 2],
    books: usize,
) -> Result<usize> {
    let stored = t.dtype().bits();
    let bits = entries.checked_ilog2().unwrap_or(0) as usize;
    if count == books && entries.is_power_of_two() && (1..=stored).contains(&bits) {
        return Ok(bits);
    }
    let what = format!(
        "codes of {stored} bits in {books} codebooks do not go with `{}` {:?}",
        codebooks.name(),
        codebooks.shape()
    );
    Err(wrong(t, what))
}

/// # Errors
/// The config says other sizes than those that the shapes tell, in the order of [`SIZES`].
fn check_config(t: &Tensor<'_>, base: &str, sizes: [usize; 4], all: &Index<'_>) -> Result<()> {
    let module = all.config.at(base.trim_end_matches('.'));
    for (key, size) in SIZES.into_iter().zip(sizes) {
        let stated = module.int(&[key]).filter(|_| !module.uncertain);
        if let Some((stated, place)) = stated.filter(|(stated, _)| *stated != size as i64) {
            let what = format!("{place} says `{key}` {stated}, and it is {size} here");
            return Err(wrong(t, what));
        }
    }
    Ok(())
}

/// Codes as they are stored, a number for each codebook of each block.
struct AqlmCodes<'m> {
    part: Part<'m>,
    /// Bytes of a code.
    bytes: usize,
    /// Bits of a code that count.
    bits: usize,
    /// Blocks of a row.
    across: usize,
    books: usize,
    block: [usize; 2],
}

impl VectorCodes for AqlmCodes<'_> {
    fn load(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<()> {
        let [height, width] = self.block;
        let rows = tile.rows.start / height..tile.rows.end.div_ceil(height);
        let size = self.books * self.bytes;
        let cols = tile.cols.start / width * size..tile.cols.end.div_ceil(width) * size;
        read(&self.part, self.across * size, rows, cols, staging)?;
        // Codes are signed where their highest bit is set: only the bits count.
        let mask = (1 << self.bits) - 1;
        out.clear();
        match self.bytes {
            1 => out.extend(staging.iter().map(|&code| u32::from(code) & mask)),
            _ => {
                let codes = staging.as_chunks().0.iter();
                out.extend(codes.map(|&code| u32::from(u16::from_le_bytes(code)) & mask));
            }
        }
        if self.books > 1 {
            for codes in out.chunks_exact_mut(self.books) {
                for (book, code) in (0..).zip(codes) {
                    *code += book << self.bits;
                }
            }
        }
        Ok(())
    }
}

/// The scale of each row, of which each row of blocks has one.
struct ScalesOfBlocks<'m> {
    inner: Box<dyn ScaleMatrix + 'm>,
    /// Rows of a block.
    height: usize,
}

impl ScaleMatrix for ScalesOfBlocks<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let blocks = rows.start / self.height..rows.end.div_ceil(self.height);
        let (first, mut scales) = (blocks.start, Vec::new());
        self.inner.extend(blocks, cols, staging, &mut scales)?;
        out.extend(rows.map(|row| scales[row / self.height - first]));
        Ok(())
    }
}
