//! EXL3 of exllamav3: values of a trellis code, in tiles of 16 × 16, between Hadamard matrices of
//! 128 inputs and 128 outputs.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.trellis` I16 `[in / 16, out / 16, 16 * bits]` | streams of the tiles; bits may be 1.5, 2.5 and 3.5 |
//! | `P.suh` F16 `[in]`, `P.svh` F16 `[out]` | factors of inputs and outputs |
//! | `P.su` I16 `[in / 16]`, `P.sv` I16 `[out / 16]` | in their place in old models: signs, a bit each |
//! | `P.mcg` or `P.mul1` I32 | the multiplier, which tells the codebook; neither: the first codebook |
//!
//! Inputs and outputs are padded to multiples of 128. What a weight has of them is not stored: a
//! bias that is not padded tells the outputs, and `config.json` the sizes of layers of known names.
//!
//! Layout: exllamav3 `modules/linear.py`, `modules/quant/exl3.py`, `conversion/quant_config.py`.

mod table;
mod variants;

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use self::table::claim_table;
use self::variants::refuse_variants;
use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::exl3::{
    BLOCK, BitRate, BlockSums, Codebook, MAX_BITS, TILE, TrellisRows,
};
use crate::remember::layout::padding::{take_padded_bias, unpadded, unpadded_outputs};
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Group, Identity, Index, QuantScheme, Scheme, Sibling,
    StoredRows, TensorRole, Tile, base_of, read, refused, wrong,
};
use crate::simd::{Level, dispatch, perform};
use crate::{Dtype, Result};

pub(super) struct Exl3;

/// Name in messages.
const FAMILY: &str = "EXL3";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Exl3],
    codes: &[".trellis"],
    companions: &[
        (Ends(".su"), TensorRole::Scale),
        (Ends(".sv"), TensorRole::Scale),
        (Ends(".suh"), TensorRole::Scale),
        (Ends(".svh"), TensorRole::Scale),
        (Ends(".mcg"), TensorRole::QuantState),
        (Ends(".mul1"), TensorRole::QuantState),
    ],
    // Without its mark a weight would be decoded with another codebook.
    optional: &[Sibling::OfModule("mcg"), Sibling::OfModule("mul1")],
    activations: &[],
    markers: &[],
    sidecars: &[Is("quantization_config.json")],
    container: None,
};

impl Scheme for Exl3 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "trellis") else {
            // Parameters of other models have this name, so that it is no companion.
            if let Some(base) = base_of(t.name(), "signs")
                && all.config.quant_method() == Some(&QuantMethod::Exl3)
            {
                all.need(t, base, "trellis")?;
            }
            return Ok(None);
        };
        if let Some(table) = claim_table(t, base, all)? {
            return Ok(Some(table));
        }
        refuse_variants(t, base, all)?;
        let ([inputs, outputs], rate) = stored_sizes(t)?;
        let (input_factors, suh) = Factors::find(t, base, ["suh", "su"], inputs, all)?;
        let (output_factors, svh) = Factors::find(t, base, ["svh", "sv"], outputs, all)?;
        let (codebook, mark) = find_codebook(t, base, all)?;
        if rate.has_half && codebook != Codebook::Mul1 {
            let what = format!(
                "values of {}.5 bits have the codebook `mul1`, and its mark is missing",
                rate.bits
            );
            return Err(wrong(t, what));
        }
        let bias = all.at(base, "bias").filter(|bias| bias.shape().len() == 1);
        let module = base.trim_end_matches('.');
        let sizes = all.config.layer_sizes(module);
        let shape = [
            unpadded_outputs(outputs, bias.as_ref(), sizes[0], BLOCK),
            unpadded(inputs, sizes[1], BLOCK),
        ];
        let decoder = Exl3Weight {
            trellis: *t,
            rate,
            codebook,
            mark,
            inputs: input_factors,
            outputs: output_factors,
            stored_outputs: outputs,
            shape,
        };
        let mut parts =
            vec![(TensorRole::Quantized, *t), (TensorRole::Scale, suh), (TensorRole::Scale, svh)];
        parts.extend(mark.map(|mark| (TensorRole::QuantState, mark)));
        let others = take_padded_bias(bias, [outputs, shape[0]], &mut parts)?;
        let name = format!("{base}weight");
        let scheme = QuantScheme::Exl3 {
            // At most 8.
            bits: rate.bits as u8,
            has_half_bit: rate.has_half,
        };
        let group = Group::new(name, shape.as_slice(), scheme, parts, Box::new(decoder));
        Ok(Some(group.with_others(others)))
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        let is_open = group.parts[0].1.shape().len() == 2 && all.config.hidden_size().is_none();
        is_open.then_some("no `hidden_size` says how long rows of an embedding are: read with the padding to whole groups of 256")
    }
}

/// Inputs and outputs of a layer as they are stored, and bits of a value.
///
/// # Errors
/// The shape is not that of whole blocks.
fn stored_sizes(t: &Tensor<'_>) -> Result<([usize; 2], BitRate)> {
    let &[inputs, outputs, words] = t.shape() else {
        return Err(wrong(t, "a trellis has three dimensions"));
    };
    if t.dtype() != Dtype::I16 {
        return Err(wrong(t, "a trellis is I16"));
    }
    let rate = BitRate::of_tile(words).ok_or_else(|| {
        let what = format!(
            "tiles of {words} words have neither 1 to {MAX_BITS} bits a value nor 1.5, 2.5 or 3.5"
        );
        wrong(t, what)
    })?;
    let whole = |tiles: usize| {
        tiles
            .checked_mul(TILE)
            .filter(|n| n.is_multiple_of(BLOCK))
            .ok_or_else(|| wrong(t, "its inputs and outputs are not multiples of 128"))
    };
    Ok(([whole(inputs)?, whole(outputs)?], rate))
}

/// The codebook of a layer, and the tensor that tells it.
///
/// # Errors
/// There are two such tensors, or it is no single integer, or the config names another codebook:
/// the mark may be lost.
fn find_codebook<'m>(
    t: &Tensor<'_>,
    base: &str,
    all: &Index<'m>,
) -> Result<(Codebook, Option<Tensor<'m>>)> {
    let (codebook, mark) = match (all.at(base, "mcg"), all.at(base, "mul1")) {
        (None, None) => (Codebook::ThreeInst, None),
        (mark @ Some(_), None) => (Codebook::Mcg, mark),
        (None, mark @ Some(_)) => (Codebook::Mul1, mark),
        (Some(_), Some(_)) => {
            let what = "it has the marks of two codebooks, `mcg` and `mul1`";
            return Err(wrong(t, what));
        }
    };
    if let Some(mark) = &mark
        && (!matches!(mark.dtype(), Dtype::I32 | Dtype::U32) || mark.elements() != 1)
    {
        return Err(wrong(mark, "the mark of a codebook is one I32"));
    }
    if let Some((stated, place)) = all.config.text(&["codebook"])
        && stated != codebook.name()
    {
        let what =
            format!("{place} says the codebook `{stated}`, and its tensors `{}`", codebook.name());
        return Err(wrong(t, what));
    }
    Ok((codebook, mark))
}

/// A factor for each input or output.
enum Factors<'m> {
    Halves(Floats<'m>),
    /// A bit for each, of which 1 is -1.
    Signs(Tensor<'m>),
}

impl<'m> Factors<'m> {
    /// Finds the `n` factors of a layer under one of two names, the second of which is that of
    /// signs.
    ///
    /// # Errors
    /// There is none or both, or they are not `n`.
    fn find(
        t: &Tensor<'_>,
        base: &str,
        [halves, signs]: [&str; 2],
        n: usize,
        all: &Index<'m>,
    ) -> Result<(Self, Tensor<'m>)> {
        let found = match (all.at(base, halves), all.at(base, signs)) {
            (Some(_), Some(_)) => {
                let what = format!("it has both `{base}{halves}` and `{base}{signs}`");
                return Err(wrong(t, what));
            }
            (None, Some(signs)) => signs,
            _ => all.need(t, base, halves)?,
        };
        let is_signs = found.name().ends_with(signs);
        let (dtype, len) = match is_signs {
            true => (Dtype::I16, n / 16),
            false => (Dtype::F16, n),
        };
        if found.dtype() != dtype || found.shape() != [len] {
            let what = format!("its layer has {n} of them, which are {dtype} [{len}]");
            return Err(wrong(&found, what));
        }
        let factors = match is_signs {
            true => Self::Signs(found),
            false => Self::Halves(Floats::ieee(&found)?),
        };
        Ok((factors, found))
    }

    /// Replaces `out` with the factors in `range`, which begins and ends at multiples of 16.
    fn load(&self, range: &Range<usize>, staging: &mut Vec<u8>, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        match self {
            // One row, whatever its length.
            Self::Halves(floats) => floats.extend(range.end, 0..1, range.clone(), staging, out),
            Self::Signs(signs) => {
                let bytes = range.start / 8..range.end / 8;
                read(&signs.part(), bytes.end, 0..1, bytes, staging)?;
                let sign = |byte: u8, bit: usize| if byte >> bit & 1 == 0 { 1.0 } else { -1.0 };
                out.extend(
                    staging
                        .iter()
                        .flat_map(|&byte| (0..8).map(move |bit| sign(byte, bit))),
                );
                Ok(())
            }
        }
    }
}

/// The decoder of a layer.
struct Exl3Weight<'m> {
    trellis: Tensor<'m>,
    rate: BitRate,
    codebook: Codebook,
    mark: Option<Tensor<'m>>,
    inputs: Factors<'m>,
    outputs: Factors<'m>,
    /// Outputs with those that are padding.
    stored_outputs: usize,
    /// Outputs and inputs without padding.
    shape: [usize; 2],
}

impl Exl3Weight<'_> {
    /// Checks that the mark is the multiplier that the codebook has in every released version.
    fn check_mark(&self) -> Result<()> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        let mut bytes = [0; 4];
        mark.part().read_at(0, &mut bytes)?;
        let multiplier = u32::from_le_bytes(bytes);
        if Some(multiplier) == self.codebook.mark() {
            return Ok(());
        }
        let what = format!("its codebook has the multiplier {multiplier:#010x}");
        Err(refused(mark, FAMILY, what))
    }
}

impl Decode for Exl3Weight<'_> {
    fn grid(&self) -> Grid {
        let [rows, cols] = self.shape;
        Grid {
            rows,
            cols,
            row_align: BLOCK,
            col_align: BLOCK,
            // A sum beside the stored bits, and a factor for each column.
            load_bits: 32.0 + self.rate.of_two() as f64 / 2.0 + 32.0 / BLOCK as f64,
            transposed: Some(StoredRows::of_one(TILE / 2 * self.rate.of_two(), TILE)),
        }
    }

    /// Sums up the blocks as well: a row of the output needs all of its block.
    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.check_mark()?;
        // Tiles end at the end of a block or of the weight, whose last blocks are stored whole.
        let whole = |range: &Range<usize>| range.start..range.end.next_multiple_of(BLOCK);
        let (rows, cols) = (whole(&tile.rows), whole(&tile.cols));
        let Buffers { bytes, words, staging, row, factors: inputs, .. } = buffers;
        let tile_bytes = self.rate.tile_bytes();
        bytes.load(
            &self.trellis.part(),
            self.stored_outputs / TILE * tile_bytes,
            cols.start / TILE..cols.end / TILE,
            rows.start / TILE * tile_bytes..rows.end / TILE * tile_bytes,
        )?;
        words.resize(rows.len() * cols.len(), 0);
        // The sums are I32, in the buffer for words of four bytes.
        if let Ok(sums) = <[i32]>::mut_from_bytes(words.as_mut_bytes()) {
            let mut blocks = BlockSums {
                tiles: bytes,
                across: rows.len() / TILE,
                rate: self.rate,
                codebook: self.codebook,
                sums,
            };
            perform(Level::default(), &mut blocks);
        }
        self.inputs.load(&cols, staging, row)?;
        // A power of two, so that products with it are exact.
        let unit = (self.codebook.unit() / BLOCK as f64) as f32;
        // The library sums over inputs after it has multiplied them, and infinities of both signs
        // are NaN.
        let factor = |x: f32| {
            if x.is_infinite() { f32::NAN } else { x }
        };
        inputs.clear();
        inputs.extend(row.iter().map(|&x| factor(x) * unit));
        self.outputs.load(&rows, staging, row)
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
        let sums = <[i32]>::ref_from_bytes(buffers.words.as_bytes()).unwrap_or_default();
        let kernel = TrellisRows {
            sums,
            first,
            cols: tile.cols.len(),
            inputs: &buffers.factors,
            outputs: &buffers.row[first..],
        };
        dispatch(level, &kernel, out);
    }
}
