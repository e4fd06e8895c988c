//! BitsAndBytes. 4-bit: `X` (packed bytes, of any dtype), `X.absmax`, `X.quant_map` F32 `[16]`,
//! `X.quant_state.bitsandbytes__nf4|fp4` (JSON as U8) and, double-quantized, `X.nested_absmax` and
//! `X.nested_quant_map` F32 `[256]`. GPTQModel's layers have `X_absmax` and so on, and
//! `X_quant_state`, whose JSON alone has the type. INT8: see `bnb/int8.rs`.
//!
//! Layout: bitsandbytes `functional.QuantState.as_dict`; gptqmodel
//! `nn_modules/qlinear/bitsandbytes.py`.

mod int8;
mod state;
#[cfg(feature = "bnb")]
mod state_text;

use std::ops::Range;

pub(super) use self::int8::BnbInt8;
use self::state::Bnb4State;
pub(crate) use self::state::is_block_size;
#[cfg(feature = "bnb")]
pub(crate) use self::state_text::Bnb4StateText;
#[cfg(all(test, feature = "lethe"))]
pub(crate) use self::state_text::{MAX_FLOAT_LEN, python_float};
pub use crate::compat::dequantize::{
    dequantize_bnb_int8_to_bf16, dequantize_bnb4_double_quant_to_bf16, dequantize_bnb4_to_bf16,
};
use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::bnb::{fp4_codebook, nested_absmax};
use crate::remember::kernels::codebook::{CodebookBlocks, PairTable};
use crate::remember::seam::NamePattern::{Contains, Ends};
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, Tile, module_of,
};
use crate::remember::seam::{read, wrong};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(super) struct Bnb4;

/// Prepared if some tensor of the model belongs to a 4-bit weight. In other models, which are most,
/// claims then build no names of companions to look up.
struct HasBnb4;

/// Ends of the names of a weight's companions.
#[derive(Clone, Copy)]
struct Names {
    absmax: &'static str,
    map: &'static str,
    nested_absmax: &'static str,
    nested_map: &'static str,
    /// Of the state, for messages.
    state: &'static str,
}

const OF_BITSANDBYTES: Names = Names {
    absmax: ".absmax",
    map: ".quant_map",
    nested_absmax: ".nested_absmax",
    nested_map: ".nested_quant_map",
    state: ".quant_state.bitsandbytes__nf4` (or `…__fp4",
};

const OF_GPTQMODEL: Names = Names {
    absmax: "_absmax",
    map: "_quant_map",
    nested_absmax: "_nested_absmax",
    nested_map: "_nested_quant_map",
    state: "_quant_state",
};

/// Whether `t` may be packed codes of BitsAndBytes without their companions: a column `[n, 1]` in a
/// model whose config has `load_in_4bit`. `bnb_4bit_quant_storage` allows any dtype for the bytes,
/// so the dtype tells nothing.
fn may_be_bnb_4bit(t: &Tensor<'_>, all: &Index<'_>) -> bool {
    matches!(t.shape(), &[n, 1] if n > 1) && all.config.flag("load_in_4bit") == Some(true)
}

static IDENTITY: Identity = Identity {
    name: "BitsAndBytes 4-bit",
    over: &[],
    methods: &[QuantMethod::BitsAndBytes],
    codes: &[],
    companions: &[
        (Ends(".weight.absmax"), TensorRole::Scale),
        (Ends(".weight_absmax"), TensorRole::Scale),
        (Ends(".quant_map"), TensorRole::QuantMap),
        (Ends(".weight_quant_map"), TensorRole::QuantMap),
        (Ends(".nested_absmax"), TensorRole::NestedScale),
        (Ends(".weight_nested_absmax"), TensorRole::NestedScale),
        (Ends(".nested_quant_map"), TensorRole::QuantMap),
        (Ends(".weight_nested_quant_map"), TensorRole::QuantMap),
        (Ends(".weight_quant_state"), TensorRole::QuantState),
        (Contains(".quant_state.bitsandbytes__"), TensorRole::QuantState),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Bnb4 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Bnb4
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        // `contains` rather than `ends_with`: the state's name goes on with the type.
        let parts = [
            ".absmax",
            ".quant_map",
            ".quant_state.bitsandbytes__",
            ".weight_absmax",
            ".weight_quant_map",
            ".weight_quant_state",
        ];
        let mut tensors = all.model.tensors();
        tensors
            .any(|t| parts.iter().any(|part| t.name().contains(part)))
            .then(|| Box::new(HasBnb4) as Prepared)
    }

    fn may_be_codes(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        may_be_bnb_4bit(t, all)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if all.prepared::<HasBnb4>().is_none() {
            return Ok(None);
        }
        let name = t.name();
        let state_of = |kind: &str| all.at(name, &format!(".quant_state.bitsandbytes__{kind}"));
        // Which of the two exists also tells the type: code 8 of FP4 is decoded in another way.
        let state = state_of("fp4").or_else(|| state_of("nf4"));
        let of_gptqmodel = ["_quant_state", "_absmax", "_quant_map"].map(|end| all.at(name, end));
        let names = match of_gptqmodel.iter().any(Option::is_some) && state.is_none() {
            true => OF_GPTQMODEL,
            false => OF_BITSANDBYTES,
        };
        let state = state.or(of_gptqmodel[0]);
        // Neither companion and no state: an ordinary tensor. Any of the three makes it quantized,
        // and then the others must exist.
        let (absmax, map) = match (all.at(name, names.absmax), all.at(name, names.map)) {
            (None, None) if state.is_none() => return Ok(None),
            _ => (all.need(t, name, names.absmax)?, all.need(t, name, names.map)?),
        };
        let Some(state_tensor) = state else {
            return Err(wrong(
                t,
                format!("its `{name}{}` is missing, which has its shape", names.state),
            ));
        };
        if map.dtype() != Dtype::F32 || map.elements() != 16 {
            return Err(wrong(&map, "a 4-bit codebook is F32 [16]"));
        }
        // The packed bytes may be stored under any dtype (`bnb_4bit_quant_storage`), so their
        // number counts, not the shape.
        let bytes = t.info().len as usize;
        // A header alone has no state to read; listings show the weight as flat then.
        let state = if state_tensor.part().is_readable() {
            Bnb4State::read(&state_tensor)?
        } else {
            Bnb4State::unread(bytes)
        };
        let total = state
            .shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d));
        // An odd number of values leaves the last nibble unused.
        let Some(total) = total.filter(|n| n.div_ceil(2) == bytes) else {
            return Err(wrong(
                t,
                format!(
                    "its quant_state says shape {:?}, which does not take {bytes} bytes",
                    state.shape
                ),
            ));
        };
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, absmax),
            (TensorRole::QuantMap, map),
        ];
        check_stated_type(t, &state, names, all)?;
        let is_fp4 = state.is_fp4(&state_tensor);
        let absmax = find_absmax(t, (&absmax, names), &state, total, all, &mut parts)?;
        parts.push((TensorRole::QuantState, state_tensor));
        let decoder = Box::new(Bnb4Weight {
            codes: t.part(),
            map: Codebook::Stored(map.part()),
            absmax,
            total,
            block: state.block,
            fp4: is_fp4,
        });
        Ok(Some(Group::new(name.to_owned(), state.shape, QuantScheme::Bnb4, parts, decoder)))
    }
}

/// Checks that the config of GPTQModel's layer `t` names the type that its state has.
///
/// # Errors
/// It names another one.
fn check_stated_type(
    t: &Tensor<'_>,
    state: &Bnb4State,
    names: Names,
    all: &Index<'_>,
) -> Result<()> {
    let Some(kind) = state.quant_type.as_deref() else {
        return Ok(());
    };
    let is_of_gptqmodel = names.state == OF_GPTQMODEL.state;
    let stated = all.config.at(module_of(t.name())).text(&["format"]);
    match stated.filter(|_| is_of_gptqmodel) {
        Some((stated @ ("nf4" | "fp4"), place)) if stated != kind => {
            let what = format!("{place} says `{stated}`, and its quant_state {kind}");
            Err(wrong(t, what))
        }
        _ => Ok(()),
    }
}

/// The absmax of the blocks.
enum Absmax<'m> {
    Plain(Floats<'m>),
    /// Codes of eight bits in blocks of their own: `map[code] * scale + offset`.
    Nested {
        codes: Part<'m>,
        map: Part<'m>,
        scales: Floats<'m>,
        block: usize,
        offset: f32,
    },
}

/// The absmax of the blocks of `t`, whose further tensors are appended to `parts`.
///
/// # Errors
/// A tensor is missing, or has another number of elements than there are blocks.
fn find_absmax<'m>(
    t: &Tensor<'m>,
    (absmax, names): (&Tensor<'m>, Names),
    state: &Bnb4State,
    total: usize,
    all: &Index<'m>,
    parts: &mut Vec<(TensorRole, Tensor<'m>)>,
) -> Result<Absmax<'m>> {
    let blocks = total.div_ceil(state.block);
    // Without data the block size is a guess (`Bnb4State::unread`) and proves nothing.
    let readable = absmax.part().is_readable();
    if absmax.elements() != blocks && readable {
        return Err(wrong(
            absmax,
            format!("{total} values in blocks of {} want {blocks} scales", state.block),
        ));
    }
    if absmax.dtype() != Dtype::U8 {
        return Ok(Absmax::Plain(Floats::ieee(absmax)?));
    }
    let (map, scales) =
        (all.need(t, t.name(), names.nested_map)?, all.need(t, t.name(), names.nested_absmax)?);
    parts.extend([(TensorRole::NestedScale, scales), (TensorRole::QuantMap, map)]);
    let (Some(block), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
        return Err(wrong(
            t,
            "its scales are quantized, and its quant_state has no nested_blocksize and nested_offset",
        ));
    };
    if !is_block_size(block) {
        let what = format!("its quant_state says blocks of {block} scales");
        return Err(wrong(t, what));
    }
    if map.dtype() != Dtype::F32 || map.elements() != 256 {
        return Err(wrong(&map, "a codebook of scales is F32 [256]"));
    }
    if scales.elements() != blocks.div_ceil(block) && readable {
        return Err(wrong(
            &scales,
            format!("{blocks} scales in blocks of {block} want {} scales", blocks.div_ceil(block)),
        ));
    }
    Ok(Absmax::Nested {
        codes: absmax.part(),
        map: map.part(),
        scales: Floats::ieee(&scales)?,
        block,
        // The state has a Python float. bitsandbytes adds it as an F32 tensor
        // (`QuantState.from_dict`).
        offset: offset as f32,
    })
}

/// The 16 values of codes.
enum Codebook<'m> {
    Stored(Part<'m>),
    Fixed(&'static [f32; 16]),
}

/// The decoder of `total` values in `codes`, with an absmax for each `block` of them and the codebook
/// `map`. The caller has checked the sizes.
pub(super) fn decoder_of_blocks<'m>(
    codes: &Tensor<'m>,
    absmax: Floats<'m>,
    [total, block]: [usize; 2],
    map: &'static [f32; 16],
) -> Box<dyn Decode + 'm> {
    let (codes, absmax) = (codes.part(), Absmax::Plain(absmax));
    Box::new(Bnb4Weight { codes, map: Codebook::Fixed(map), absmax, total, block, fp4: false })
}

/// Decoder of a 4-bit weight. Blocks are cut from the flattened weight and may cross rows, so the
/// grid is one row.
struct Bnb4Weight<'m> {
    codes: Part<'m>,
    map: Codebook<'m>,
    absmax: Absmax<'m>,
    total: usize,
    block: usize,
    fp4: bool,
}

impl Bnb4Weight<'_> {
    /// Blocks that overlap `tile`.
    fn blocks(&self, tile: &Tile) -> Range<usize> {
        tile.cols.start / self.block..tile.cols.end.div_ceil(self.block)
    }
}

fn read_floats(part: &Part<'_>) -> Result<Vec<f32>> {
    let bytes = part.read_small(1024)?;
    Ok(bytes
        .as_chunks()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect())
}

impl Decode for Bnb4Weight<'_> {
    fn grid(&self) -> Grid {
        // A block has an F32 scale, and double-quantized its code of 8 bits and at most one F32 of
        // the outer level: 32 + 8 + 32.
        let load_bits = 4.0 + 72.0 / self.block as f64;
        Grid {
            rows: 1,
            cols: self.total,
            row_align: 1,
            // A byte has two codes, so a tile begins at an even one.
            col_align: 2,
            load_bits,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, staging, row, .. } = buffers;
        let cols = tile.cols.start / 2..tile.cols.end.div_ceil(2);
        bytes.load(&self.codes, self.total.div_ceil(2), 0..1, cols)?;
        let (blocks, count) = (self.blocks(tile), self.total.div_ceil(self.block));
        scales.clear();
        match &self.absmax {
            Absmax::Plain(absmax) => absmax.extend(count, 0..1, blocks, staging, scales)?,
            Absmax::Nested { codes, map, scales: outer, block, offset } => {
                // The outer scales pass through `row`, which afterwards has the codebook of the
                // codes.
                row.clear();
                let range = blocks.start / block..blocks.end.div_ceil(*block);
                outer.extend(count.div_ceil(*block), 0..1, range, staging, row)?;
                read(codes, count, 0..1, blocks.clone(), staging)?;
                nested_absmax(
                    staging,
                    blocks,
                    // Read anew for each tile: 1 KiB, against the megabytes of a tile.
                    &read_floats(map)?,
                    row,
                    *block,
                    *offset,
                    scales,
                );
            }
        }
        row.clear();
        match &self.map {
            Codebook::Stored(map) => row.extend(read_floats(map)?),
            Codebook::Fixed(map) => row.extend(*map),
        }
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        _rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let map: [f32; 16] = std::array::from_fn(|i| buffers.row[i]);
        let codebook = if self.fp4 { fp4_codebook(map) } else { map };
        let kernel = CodebookBlocks {
            pairs: &PairTable::new(&codebook, true),
            bytes: &buffers.bytes,
            start: tile.cols.start % self.block,
            block: self.block,
            scales: &buffers.scales,
        };
        dispatch(level, &kernel, out);
    }
}
