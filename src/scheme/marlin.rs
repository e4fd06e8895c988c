//! Marlin, four bits, symmetric. GPTQ: `X.B` I32 `[in / 16, 2 * out]` with `X.s` `[groups, out]`, and `X.workspace`,
//! which is scratch of the kernel. AWQ: `X.qweight` and `X.scales` of the same shapes, without `X.qzeros`. The weight
//! is `X.weight` `[out, in]`: `(q - 8) * s`.
//!
//! A tile of 16 inputs × 64 outputs is 128 adjacent words, in the order in which the threads of a warp load them.
//! Word `4l + t` belongs to lane l and to the t-th 16 outputs. It has eight codes, interleaved 0, 2, 4, 6, 1, 3, 5,
//! 7. Scales are permuted within 64 outputs or, if there is one group, within 32.
//!
//! Layout: auto_gptq `nn_modules/qlinear/qlinear_marlin.py` (`_get_perms`, `pack`), AutoAWQ `modules/linear/marlin.py`.

use std::ops::Range;

use crate::config::{Module, QuantMethod};
use crate::containers::model::{Part, Tensor};
use crate::kernels::remember::grouped::Int;
use crate::scheme::layout::group_size::{ShortGroup, group_size};
use crate::scheme::layout::packed::{PackedLayer, PackedLayout};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, read, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Marlin;

static IDENTITY: Identity = Identity {
    name: "Marlin",
    methods: &[QuantMethod::Gptq, QuantMethod::Awq],
    codes: &[".B"],
    companions: &[(Ends(".workspace"), TensorRole::QuantState)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Marlin {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Other(if t.name().ends_with('B') {
            "GPTQ Marlin"
        } else {
            "AWQ Marlin"
        })
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // GPTQ's Marlin has names of its own; AWQ's is told by shapes.
        if let Some(base) = super::seam::base_of(t.name(), "B")
            && let Some(scales) = all.at(base, "s")
        {
            return gptq(t, base, &scales, all).map(Some);
        }
        if let Some(packed) = PackedLayer::find(t, all)?
            && packed.layout(all)? == PackedLayout::Marlin
        {
            return awq(&packed, all).map(Some);
        }
        Ok(None)
    }
}

fn gptq<'m>(
    t: &Tensor<'m>,
    base: &'m str,
    scales: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let module = all.config.at(base.trim_end_matches('.'));
    if let Some((bits, place)) = module
        .int(&["bits"])
        .filter(|(bits, _)| *bits != 4 && !module.uncertain)
    {
        return Err(wrong(
            t,
            format!("{place} says {bits} bits, and Marlin has 4"),
        ));
    }
    // With one group the order of the inputs has no effect on the scales, so `desc_act` is
    // harmless.
    let several = scales.shape().first().is_some_and(|&groups| groups > 1);
    if module.flag("sym") == Some(false) || module.flag("desc_act") == Some(true) && several {
        return Err(wrong(
            t,
            "the config says what Marlin has not: `sym: false`, or desc_act with several groups",
        ));
    }
    let mut group = weight(t, scales, format!("{base}weight"), "GPTQ Marlin", &module)?;
    // Locks of the kernel, all zero. A part of the group, so that no output has it.
    let workspace = all
        .at(base, "workspace")
        .filter(|w| w.dtype() == Dtype::I32);
    group
        .parts
        .extend(workspace.map(|w| (TensorRole::QuantState, w)));
    Ok(group)
}

fn awq<'m>(packed: &PackedLayer<'m>, all: &Index<'m>) -> Result<Group<'m>> {
    let module = all.config.at(packed.module());
    packed.check_awq(PackedLayout::Marlin, &module, all)?;
    if module.flag("zero_point") == Some(true) {
        return Err(wrong(
            &packed.qweight,
            "the config says `zero_point: true`, and Marlin has none",
        ));
    }
    weight(
        &packed.qweight,
        &packed.scales,
        packed.weight(),
        "AWQ Marlin",
        &module,
    )
}

fn weight<'m>(
    t: &Tensor<'m>,
    scales: &Tensor<'m>,
    name: String,
    family: &'static str,
    module: &Module<'_>,
) -> Result<Group<'m>> {
    let misfit = || {
        wrong(
            t,
            format!(
                "Marlin is I32 [in / 16, 2 * out] with scales [groups, out], here {:?}",
                scales.shape()
            ),
        )
    };
    let (&[depth, words], &[groups, n]) = (t.shape(), scales.shape()) else {
        return Err(misfit());
    };
    let k = depth
        .checked_mul(TILE_INPUTS)
        .filter(|_| n.checked_mul(2) == Some(words) && n.is_multiple_of(TILE_OUTPUTS));
    let is_words = matches!(t.dtype(), Dtype::I32 | Dtype::U32);
    let Some(k) = k.filter(|&k| is_words && k > 0 && n > 0 && groups > 0) else {
        return Err(misfit());
    };
    let group = group_size(t, groups, k, ShortGroup::Never, module)?;
    let codes = Codes::Unpacked(Box::new(MarlinCodes { part: t.part(), n }));
    let scale = Box::new(PermutedScales {
        floats: Floats::ieee(scales)?,
        n,
        is_single_group: groups == 1,
    });
    let code_format = CodeFormat::Int(Int::offset_binary(4));
    let decoder = Grouped::scaled(codes, 4, code_format, [n, k], row_groups(k, group), scale);
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scales)];
    let granularity = if groups == 1 {
        Granularity::Channel
    } else {
        Granularity::Group(group)
    };
    let scheme = QuantScheme::Grouped {
        family,
        codes: CodeType::Int(4),
        scales: granularity,
    };
    Ok(Group::new(
        name,
        vec![n, k],
        scheme,
        parts,
        Box::new(decoder),
    ))
}

/// Inputs, outputs and bytes of a tile.
const TILE_INPUTS: usize = 16;
const TILE_OUTPUTS: usize = 64;
const TILE_BYTES: usize = TILE_INPUTS * TILE_OUTPUTS / 2;

/// Nibble of each of the eight codes of a word. Codes 0 to 3 belong to one output, codes 4 to 7 to the output eight
/// after it.
const NIBBLE_OF_CODE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Codes in Marlin tiles.
struct MarlinCodes<'m> {
    part: Part<'m>,
    /// Outputs.
    n: usize,
}

impl Unpack for MarlinCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        // A tile is 512 bytes, and a row of tiles holds all outputs, so a tile of 64 rows is one
        // piece of each row.
        let bytes = tile.rows.start / TILE_OUTPUTS * TILE_BYTES
            ..tile.rows.end.div_ceil(TILE_OUTPUTS) * TILE_BYTES;
        for (i, row) in
            (tile.cols.start / TILE_INPUTS..tile.cols.end.div_ceil(TILE_INPUTS)).enumerate()
        {
            read(&self.part, self.n * 8, row..row + 1, bytes.clone(), staging)?;
            let blocks = out.chunks_exact_mut(TILE_OUTPUTS * width.max(1));
            for (words, rows) in staging.chunks_exact(TILE_BYTES).zip(blocks) {
                unpack_tile(words, rows, width, i * TILE_INPUTS);
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (TILE_OUTPUTS, TILE_INPUTS)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(
            TILE_BYTES * 8 / TILE_OUTPUTS,
            TILE_INPUTS,
        ))
    }
}

/// Unpacks a tile into 16 columns, from `left` on, of the 64 rows of `rows`, which are `width` wide.
fn unpack_tile(tile: &[u8], rows: &mut [u8], width: usize, left: usize) {
    for (i, word) in tile.as_chunks().0.iter().enumerate() {
        let (lane, block, word) = (i / 4, i % 4, u32::from_le_bytes(*word));
        for (j, nibble) in NIBBLE_OF_CODE.into_iter().enumerate() {
            // Lane l holds output l / 4 of each eight, and pairs of inputs from 2 * (l % 4) on, as
            // `_get_perms` lists them.
            let row = block * 16 + j / 4 * 8 + lane / 4;
            let col = left + j / 2 % 2 * 8 + lane % 4 * 2 + j % 2;
            rows[row * width + col] = (word >> (nibble * 4) & 15) as u8;
        }
    }
}

/// Scales whose outputs are permuted in each group.
struct PermutedScales<'m> {
    floats: Floats<'m>,
    /// Outputs.
    n: usize,
    /// Whether all inputs are one group, for which Marlin has another permutation (`_get_perms`).
    is_single_group: bool,
}

impl PermutedScales<'_> {
    /// Index in its stored row of the scale of output `n`.
    fn stored_index(&self, n: usize) -> usize {
        if self.is_single_group {
            n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2
        } else {
            n / 64 * 64 + n % 8 * 8 + n % 64 / 8
        }
    }
}

impl ScaleMatrix for PermutedScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // The permutation stays within 64 outputs, so whole blocks of 64 are enough.
        // Loaded in whole blocks, because the scale of the first row may be stored last.
        let stored = rows.start / TILE_OUTPUTS * TILE_OUTPUTS
            ..rows.end.next_multiple_of(TILE_OUTPUTS).min(self.n);
        let (at, mut row) = (out.len(), Vec::new());
        out.resize(at + rows.len() * cols.len(), 0.0);
        for (i, group) in cols.clone().enumerate() {
            row.clear();
            self.floats
                .extend(self.n, group..group + 1, stored.clone(), staging, &mut row)?;
            for (n, out) in rows.clone().zip(out[at..].chunks_exact_mut(cols.len())) {
                out[i] = row[self.stored_index(n) - stored.start];
            }
        }
        Ok(())
    }
}
