//! EXL2 of exllamav2: groups of inputs, each with a width of its own, in an order in which the
//! important inputs come first.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.q_weight` I32 `[words, out]` | codes down each column, a bit stream for each group |
//! | `P.q_invperm` I32 `[in]` | the stored code of each input |
//! | `P.q_scale` I32 `[groups, out / 8]` | four bits for each output, the first in the lowest |
//! | `P.q_scale_max` F16 `[groups]` | the scale that 15 stands for |
//! | `P.q_groups` I16 `[2 * groups]` | bits of each group, and the row of its first words |
//!
//! Outputs are padded to a multiple of 32.
//!
//! Layout: exllamav2 `conversion/adaptivegptq.py` (`pack`), `ext.py` (`make_q_matrix`),
//! `cuda/q_matrix.cu`.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::config::QuantMethod;
use crate::element::{Element, Out};
use crate::model::Tensor;
use crate::remember::kernels::exl2::{CodeRun, PermutedRows};
use crate::remember::layout::padding::{take_padded_bias, unpadded_outputs};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, base_of, load, read, refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(super) struct Exl2;

/// Name in messages.
const FAMILY: &str = "EXL2";

/// Most inputs of a layer. exllamav2 has their order in 16 bits, and a tile has all of them.
const MAX_INPUTS: usize = 1 << 16;

/// Outputs are padded to multiples of this.
const PADDING: usize = 32;

/// Scales in a word.
const PER_WORD: usize = 8;

/// Bits of a word.
const WORD: usize = 32;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Exl2],
    codes: &[".q_weight"],
    companions: &[
        (Ends(".q_invperm"), TensorRole::GroupIndex),
        (Ends(".q_groups"), TensorRole::GroupIndex),
        (Ends(".q_scale_max"), TensorRole::NestedScale),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Exl2 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "q_weight") else {
            return Ok(None);
        };
        // Models have norms of queries of this name (PLaMo 2).
        let has_order = all.at(base, "q_invperm").is_some() || all.at(base, "q_groups").is_some();
        if t.dtype().is_floating_point() && !has_order {
            return Ok(None);
        }
        let decoder = Exl2Weight::new(t, base, all)?;
        let [outputs, inputs] = [decoder.stored[1], decoder.shape[1]];
        let bias = all.at(base, "bias").filter(|bias| bias.shape().len() == 1);
        let known = all.config.layer_sizes(base.trim_end_matches('.'))[0];
        let rows = unpadded_outputs(outputs, bias.as_ref(), known, PADDING);
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::GroupIndex, decoder.order),
            (TensorRole::Scale, decoder.scales),
            (TensorRole::NestedScale, decoder.maxima),
            (TensorRole::GroupIndex, decoder.groups),
        ];
        let others = take_padded_bias(bias, [outputs, rows], &mut parts)?;
        let shape = [rows, inputs];
        let decoder = Exl2Weight { shape, ..decoder };
        let (name, shape) = (format!("{base}weight"), shape.as_slice());
        let group = Group::new(name, shape, QuantScheme::Exl2, parts, Box::new(decoder));
        Ok(Some(group.with_others(others)))
    }
}

/// The decoder of a layer.
struct Exl2Weight<'m> {
    words: Tensor<'m>,
    /// Rows and columns of `words`.
    stored: [usize; 2],
    order: Tensor<'m>,
    scales: Tensor<'m>,
    maxima: Tensor<'m>,
    groups: Tensor<'m>,
    /// Number of groups.
    count: usize,
    /// Outputs without padding, and inputs.
    shape: [usize; 2],
}

impl<'m> Exl2Weight<'m> {
    /// The decoder of the codes `t`, with all outputs that are stored.
    ///
    /// # Errors
    /// Parts are missing, are more than are known, or do not fit each other.
    fn new(t: &Tensor<'m>, base: &str, all: &Index<'m>) -> Result<Self> {
        let [order, scales, maxima, groups] = [
            all.need(t, base, "q_invperm")?,
            all.need(t, base, "q_scale")?,
            all.need(t, base, "q_scale_max")?,
            all.need(t, base, "q_groups")?,
        ];
        for part in ["q_perm", "q_group_map", "weight"] {
            if let Some(other) = all.at(base, part) {
                let name = other.name();
                let what = format!("`{name}` beside it is in no layout that is decoded");
                return Err(refused(t, FAMILY, what));
            }
        }
        let (&[words, outputs], Dtype::I32) = (t.shape(), t.dtype()) else {
            return Err(wrong(t, "codes are I32 in two dimensions"));
        };
        let (&[inputs], Dtype::I32) = (order.shape(), order.dtype()) else {
            return Err(wrong(&order, "the order of inputs is I32 in one dimension"));
        };
        let (&[count], Dtype::F16) = (maxima.shape(), maxima.dtype()) else {
            return Err(wrong(&maxima, "it is F16 in one dimension"));
        };
        let decoder = Self {
            words: *t,
            stored: [words, outputs],
            order,
            scales,
            maxima,
            groups,
            count,
            shape: [outputs, inputs],
        };
        decoder.check_sizes()?;
        Ok(decoder)
    }

    /// # Errors
    /// The layer has another size than the library writes, or scales and groups have another than
    /// the codes.
    fn check_sizes(&self) -> Result<()> {
        let ([_, outputs], [_, inputs], count) = (self.stored, self.shape, self.count);
        let (t, scales, groups) = (&self.words, &self.scales, &self.groups);
        if !outputs.is_multiple_of(PER_WORD) {
            return Err(wrong(t, "its outputs are no multiple of 8"));
        }
        if inputs > MAX_INPUTS {
            let what = format!("it has {inputs} inputs; up to {MAX_INPUTS} are decoded");
            return Err(refused(t, FAMILY, what));
        }
        let per_row = outputs / PER_WORD;
        if (scales.shape(), scales.dtype()) != (&[count, per_row], Dtype::I32) {
            let what = format!("scales of {count} groups are I32 [{count}, {per_row}]");
            return Err(wrong(scales, what));
        }
        if (groups.shape(), groups.dtype()) != (&[count * 2], Dtype::I16) {
            let what = format!("{count} groups are I16 [{}]", count * 2);
            return Err(wrong(groups, what));
        }
        Ok(())
    }

    /// Replaces `runs` with the groups of a row.
    ///
    /// # Errors
    /// They are not one behind the other, or not in the order and the lengths that the library's
    /// kernels take.
    fn load_runs(&self, staging: &mut Vec<u8>, runs: &mut Vec<CodeRun>) -> Result<()> {
        read(&self.groups.part(), self.count * 4, 0..1, 0..self.count * 4, staging)?;
        let pairs = staging.as_chunks::<4>().0;
        let number = |bytes: [u8; 2]| usize::from(u16::from_le_bytes(bytes));
        let first_word = |&[_, _, low, high]: &[u8; 4]| number([low, high]);
        runs.clear();
        let (mut left, mut widest) = (self.shape[1], 8);
        for (i, pair) in pairs.iter().enumerate() {
            let (bits, word) = (number([pair[0], pair[1]]), first_word(pair));
            let end = pairs.get(i + 1).map_or(self.stored[0], first_word);
            let is_next = word
                == runs
                    .last()
                    .map_or(0, |run: &CodeRun| run.word + run.len * run.bits / WORD);
            // The kernels have a loop for each width, the widest first, and take so many codes at
            // once.
            let step = if bits == 2 { 16 } else { 32 };
            let len = match end.checked_sub(word) {
                Some(words) if bits > 0 => words * WORD / bits,
                _ => 0,
            };
            let is_whole =
                len > 0 && len.is_multiple_of(step) && len * bits == (end - word.min(end)) * WORD;
            if !matches!(bits, 2..=6 | 8) || bits > widest || !is_next || !is_whole || len > left {
                let what = format!("group {i} has {bits} bits from word {word} to {end}");
                return Err(wrong(&self.groups, what));
            }
            runs.push(CodeRun { bits, word, len });
            (left, widest) = (left - len, bits);
        }
        if left > 0 {
            let what =
                format!("its groups leave {left} of {} inputs without a code", self.shape[1]);
            return Err(wrong(&self.groups, what));
        }
        Ok(())
    }

    /// Replaces `order` with the stored code of each input.
    ///
    /// # Errors
    /// Two inputs have the same, or one that is not stored.
    fn load_order(&self, staging: &mut Vec<u8>, order: &mut Vec<u32>) -> Result<()> {
        let inputs = self.shape[1];
        read(&self.order.part(), inputs * 4, 0..1, 0..inputs * 4, staging)?;
        order.clear();
        order.extend(staging.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)));
        let mut is_taken = vec![false; inputs];
        for (input, &place) in order.iter().enumerate() {
            match is_taken.get_mut(place as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => {
                    let what = format!(
                        "input {input} has code {}, of {inputs}, or another has it as well",
                        place as i32
                    );
                    return Err(wrong(&self.order, what));
                }
            }
        }
        Ok(())
    }

    /// Replaces `out` with the scales of rows `rows`, which begin at a multiple of 8.
    fn load_scales(
        &self,
        rows: &Range<usize>,
        staging: &mut Vec<u8>,
        maxima: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        maxima.clear();
        let floats = Floats::ieee(&self.maxima)?;
        floats.extend(self.count, 0..1, 0..self.count, staging, maxima)?;
        let words = rows.start / PER_WORD..rows.end.div_ceil(PER_WORD);
        let width = words.len();
        let stride = self.stored[1] / PER_WORD * 4;
        read(&self.scales.part(), stride, 0..self.count, words.start * 4..words.end * 4, staging)?;
        out.clear();
        out.resize(rows.len() * self.count, 0.0);
        let half = <half::f16 as Element>::rounded;
        for (g, (line, &max)) in staging
            .chunks_exact((width * 4).max(1))
            .zip(&*maxima)
            .enumerate()
        {
            // Halves, as the library has them: a maximum near zero loses bits.
            let unit = half(max / 256.0);
            let rows = out.chunks_mut((PER_WORD * self.count).max(1));
            for (word, rows) in line.as_chunks().0.iter().zip(rows) {
                let word = u32::from_le_bytes(*word);
                for (i, row) in rows.chunks_exact_mut(self.count).enumerate() {
                    let step = (word >> (4 * i) & 15) + 1;
                    row[g] = half((step * step) as f32 * unit);
                }
            }
        }
        Ok(())
    }
}

impl Decode for Exl2Weight<'_> {
    fn grid(&self) -> Grid {
        let [rows, cols] = self.shape;
        // An empty matrix can claim any number of words.
        let row_bits = self.stored[0] as f64 * WORD as f64 + self.count as f64 * 32.0;
        Grid {
            rows,
            cols,
            row_align: PER_WORD,
            // The codes of a column lie anywhere in a row.
            col_align: cols.max(1),
            load_bits: row_bits / cols.max(1) as f64 + 64.0 / PER_WORD as f64,
            transposed: Some(StoredRows::of_one(WORD, (cols / self.stored[0].max(1)).max(1))),
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { words, staging, row, scales, index, runs, .. } = buffers;
        self.load_runs(staging, runs)?;
        self.load_order(staging, index)?;
        self.load_scales(&tile.rows, staging, row, scales)?;
        let [rows, outputs] = self.stored;
        let column = load::transposed_words::<4>(rows);
        words.resize(tile.rows.len() * column, 0);
        load::read_transposed::<4>(
            load::StoredWords { part: &self.words.part(), stride: outputs, ahead: None },
            [0..rows, tile.rows.clone()],
            staging,
            column,
            words,
        )
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let first = rows.start - tile.rows.start;
        let row_bytes = load::transposed_words::<4>(self.stored[0]) * 4;
        let kernel = PermutedRows {
            bytes: &buffers.words.as_bytes()[first * row_bytes..],
            row_bytes,
            runs: &buffers.runs,
            scales: &buffers.scales[first * self.count..],
            order: &buffers.index,
        };
        dispatch(level, &kernel, out);
    }
}
