//! AWQ, GEMM layout: `X.qweight` I32 `[in, out / 8]`, `X.qzeros` I32 `[groups, out / 8]`,
//! `X.scales` `[groups, out]`, four bits. The weight is `X.weight` `[out, in]`. AutoRound's
//! `auto_awq` of four bits is the same.
//!
//! Layout: AutoAWQ `modules/linear/gemm.py`.
//!
//! A word has the codes of eight outputs. They are taken apart while the stored rows are
//! transposed, so that the kernel is the shared one.

mod gemv;
mod wide;

pub(in crate::remember) use self::gemv::{Gemv, Quads};
pub(in crate::remember) use self::wide::AwqWide;

use std::ops::Range;

use zerocopy::IntoBytes;

pub use crate::compat::dequantize::dequantize_awq_to_bf16;
use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::awq::{OUTPUTS, PER_WORD, POSITION};
use crate::remember::layout::group_size::{ShortGroup, group_size};
use crate::remember::packed::{
    BitStreams, PackedLayer, PackedLayout, for_each_zeros, grouped_rows, load_scales,
};
use crate::remember::seam::NamePattern::{Ends, EndsIfQuantized, Is};
use crate::remember::seam::Sibling;
use crate::remember::seam::load::{StoredWords, read_transposed_codes, transposed_code_words};
use crate::remember::seam::wrong;
use crate::remember::seam::{
    Buffers, CodeFamily, Decode, ExtractCodes, Floats, Grid, Group, GroupCodes, Identity, Index,
    MethodFacts, QuantScheme, RelaySource, Scheme, StatedCodes, StoredPiece, StoredRectangle,
    StoredRows, TensorRole, Tile,
};
use crate::simd::Level;
use crate::{Dtype, Result};

pub(super) struct Awq;

pub(super) static IDENTITY: Identity = Identity {
    name: "AWQ",
    over: &["AWQ of five to seven bits", "AWQ GEMV"],
    methods: &[QuantMethod::Awq, QuantMethod::AutoRound],
    codes: &[],
    companions: &[
        (EndsIfQuantized(".scales"), TensorRole::Scale),
        (Ends(".qzeros"), TensorRole::ZeroPoint),
        (Ends(".scaled_zeros"), TensorRole::ZeroPoint),
    ],
    optional: &[Sibling::OfModule("qzeros"), Sibling::OfModule("scaled_zeros")],
    activations: &[],
    markers: &[],
    sidecars: &[Is("quant_config.json")],
    container: None,
};

const METHODS: &[MethodFacts] = &[MethodFacts::new(&QuantMethod::Awq, StatedCodes::Words)];

impl Scheme for Awq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Awq
    }

    fn methods(&self) -> &'static [MethodFacts] {
        METHODS
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(packed) = PackedLayer::find(t, all)? else {
            return Ok(None);
        };
        let Some((decoder, parts)) = gemm_layer(&packed, all)? else {
            return Ok(None);
        };
        Ok(Some(Group::new(
            packed.weight(),
            vec![decoder.n, decoder.k],
            QuantScheme::Awq,
            parts,
            Box::new(decoder),
        )))
    }
}

/// The decoder and the parts of a layer in GEMM's layout of four bits; `None` if its layout is
/// another.
///
/// # Errors
/// The tensors do not fit each other or the config.
#[expect(clippy::type_complexity, reason = "a pair of what two callers name differently")]
pub(super) fn gemm_layer<'m>(
    packed: &PackedLayer<'m>,
    all: &Index<'m>,
) -> Result<Option<(AwqWeight<'m>, Vec<(TensorRole, Tensor<'m>)>)>> {
    let t = &packed.qweight;
    let layout = packed.layout(all)?;
    if layout != (PackedLayout::Gemm { bits: 4 }) {
        return Ok(None);
    }
    let module = all.config.at(packed.module());
    packed.check_awq(layout, &module, all)?;
    packed.check_words(&[Dtype::I32, Dtype::U32])?;
    // GEMM stores `[in, out / 8]`: the rows of the words are the inputs, one word row for each.
    let k = packed.words[0];
    let group_size = group_size(t, packed.groups, k, ShortGroup::Never, &module)?;
    let qzeros = packed_zeros(packed)?.map(|zeros| zeros.part());
    // Symmetric files have no `qzeros` (compressed-tensors `AutoAWQConverter`). A file that
    // lost the tensor looks alike, so only the config's word makes 8 of it.
    if qzeros.is_none() && module.flag("zero_point") != Some(false) {
        let what = format!(
            "its `{}qzeros` is missing, and no config says `zero_point: false`",
            packed.base
        );
        return Err(wrong(t, what));
    }
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, packed.scales)];
    parts.extend(packed.qzeros.map(|z| (TensorRole::ZeroPoint, z)));
    let decoder = AwqWeight {
        qweight: t.part(),
        scales: Floats::ieee(&packed.scales)?,
        qzeros,
        k,
        n: packed.n,
        group_size,
    };
    Ok(Some((decoder, parts)))
}

/// The zero points of the layer, or `None` if it stores none.
///
/// # Errors
/// They are not one word for each word of the codes' rows and each group.
pub(super) fn packed_zeros<'m>(packed: &PackedLayer<'m>) -> Result<Option<Tensor<'m>>> {
    // One word of zero points for each word of a code row: both pack the same outputs in the same
    // order.
    let (groups, words) = (packed.groups, packed.words[1]);
    match &packed.qzeros {
        Some(zeros) if zeros.shape() != [groups, words] => Err(wrong(
            zeros,
            format!("scales {:?} want [{groups}, {words}]", packed.scales.shape()),
        )),
        zeros => Ok(*zeros),
    }
}

/// The zero point of a layer that stores none: the middle of the range.
const MIDDLE: f32 = 8.0;

/// The decoder of a linear layer.
pub(super) struct AwqWeight<'m> {
    pub qweight: Part<'m>,
    scales: Floats<'m>,
    qzeros: Option<Part<'m>>,
    /// Inputs and outputs.
    pub k: usize,
    pub n: usize,
    pub group_size: usize,
}

impl AwqWeight<'_> {
    /// The words of a stored row that hold output features `rows`.
    pub(super) fn words(rows: &Range<usize>) -> Range<usize> {
        rows.start / PER_WORD..rows.end.div_ceil(PER_WORD)
    }

    /// Words of a stored row. The layout proved `n * 4 = words * 32`, so the division is exact.
    pub(super) fn row_words(&self) -> usize {
        self.n / PER_WORD
    }

    /// Brings the scales and zero points of `tile` into `buffers`, a row for each row of the tile.
    pub(super) fn load_numbers(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { staging, row, scales, zeros, zero_words, .. } = buffers;
        let groups: Vec<usize> =
            (tile.cols.start / self.group_size..tile.cols.end.div_ceil(self.group_size)).collect();
        load_scales(&self.scales, self.n, &groups, tile.rows.clone(), staging, row, scales)?;
        let count = groups.len();
        // Filled with the middle first: layers without zero points are done then, the others
        // overwrite all of it.
        zeros.clear();
        zeros.resize(count * tile.rows.len(), MIDDLE);
        let Some(qzeros) = &self.qzeros else {
            return Ok(());
        };
        let cols = Self::words(&tile.rows);
        let bytes = cols.start * 4..cols.end * 4;
        for_each_zeros(
            qzeros,
            self.row_words() * 4,
            &groups,
            bytes,
            staging,
            zero_words,
            |g, words| {
                // A word has the zero points of eight outputs, whose rows of `zeros` are `count`
                // apart.
                for (rows, &word) in zeros.chunks_mut(PER_WORD * count).zip(words.iter()) {
                    for (row, position) in rows.chunks_exact_mut(count).zip(POSITION) {
                        row[g] = (word >> (position * 4) & 15) as f32;
                    }
                }
            },
        )
    }
}

impl Decode for AwqWeight<'_> {
    fn grid(&self) -> Grid {
        // For each group of a row an F32 scale and an F32 zero point, once loaded.
        let load_bits = 4.0 + 64.0 / self.group_size as f64;
        Grid {
            rows: self.n,
            cols: self.k,
            row_align: PER_WORD,
            col_align: 1,
            load_bits,
            transposed: Some(StoredRows::of_one(4, 1)),
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { staging, words, ahead, .. } = &mut *buffers;
        words.resize(tile.rows.len() * transposed_code_words(tile.cols.len()), 0);
        read_transposed_codes(
            StoredWords { part: &self.qweight, stride: self.row_words(), ahead: ahead.as_deref() },
            OUTPUTS,
            [tile.cols.clone(), Self::words(&tile.rows)],
            staging,
            words,
        )?;
        self.load_numbers(tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let codes = BitStreams {
            bytes: buffers.words.as_bytes(),
            row_bytes: 4 * transposed_code_words(tile.cols.len()),
            bits: 4,
            code_bits: 4,
        };
        grouped_rows(&codes, [self.k, self.group_size], tile, rows, buffers).decode(level, out);
    }

    fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        let words = Self::words(rows);
        Some(StoredRectangle {
            rows: 0..self.k,
            codes: StoredPiece {
                part: self.qweight,
                stride: self.row_words() * 4,
                bytes: words.start * 4..words.end * 4,
            },
            scales: None,
        })
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let family = CodeFamily::int(
            4,
            self.group_size,
            self.k,
            self.scales.dtype(),
            // Without stored zero points all of them are 8, which a target without zero points
            // means as well.
            self.qzeros.is_none(),
        );
        Ok(family.map(|family| RelaySource::new(family, AwqCodes)))
    }
}

/// How the codes of a layer lie in its decoder's buffers.
struct AwqCodes;

impl ExtractCodes for AwqCodes {
    fn extract(&self, [_, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        let row_bytes = 4 * transposed_code_words(cols);
        out.unpack(buffers.words.as_bytes(), row_bytes, cols, 4);
        out.scales.clone_from(&buffers.scales);
        out.zero_points.clear();
        out.zero_points
            .extend(buffers.zeros.iter().map(|&zero| zero as u8));
    }
}
