//! GPTQ: `X.qweight` I32 `[in * bits / 32, out]`, `X.scales` `[groups, out]`, and mostly `X.qzeros` I32
//! `[groups, out * bits / 32]`; `X.g_idx` I32 `[in]` maps inputs to groups. Divisions round up. The weight
//! is `X.weight` `[out, in]`. gptqmodel's words can be I16 or I8; with 5, 6 or 7 bits, and as `gptq_p` with 3, it packs
//! each 32 codes in planes. AutoRound has all widths as one stream of bits.
//!
//! Layout: gptqmodel `nn_modules/qlinear/__init__.py` (`PackableQuantLinear`), `utils/planar_packing.py`; auto-round
//! `export/export_to_autoround`.

mod words;

use std::ops::Range;

use self::words::{FORMAT, Packing, bits_and_inputs, packing, word_bits};
use crate::config::{Module, QuantMethod};
use crate::containers::model::{Part, Tensor};
use crate::element::Out;
use crate::kernels::remember::gptq::{Columns, Rows, restore_zeros};
use crate::kernels::remember::packed::CHUNK;
use crate::scheme::gated;
use crate::scheme::layout::packed::{Layout, Packed, for_each_zeros, group_size, load_scales};
use crate::scheme::seam::{
    Buffers, CodeFamily, Decode, ExtractCodes, Floats, Grid, Group, GroupCodes, Identity, Index,
    QuantScheme, RelaySource, Scheme, TensorRole, Tile,
};
use crate::scheme::seam::{load, read, refused, wrong};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Result};

pub(super) struct Gptq;

impl Scheme for Gptq {
    fn identity(&self) -> &'static Identity {
        &gated::GPTQ
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Gptq
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(packed) = Packed::find(t, all)? else {
            return Ok(None);
        };
        if packed.layout(all)? != Layout::Gptq {
            return Ok(None);
        }
        if all.config.quant_method() == Some(&QuantMethod::Awq) {
            return Err(wrong(t, "the config says AWQ, and the shapes say GPTQ"));
        }
        let word_bits = word_bits(&packed)?;
        let module = all.config.at(packed.module());
        let g_idx = all.at(packed.base, "g_idx").filter(|g| g.elements() > 0);
        let (bits, k) = bits_and_inputs(&packed, word_bits, g_idx.as_ref(), &module)?;
        let group_size = group_size(t, packed.groups, k, g_idx.is_some(), &module)?;
        if g_idx.is_none() && packed.groups > 1 && module.flag("desc_act") == Some(true) {
            return Err(wrong(
                t,
                format!(
                    "the config says desc_act, and its `{}g_idx` is missing",
                    packed.base
                ),
            ));
        }
        let packing = packing(&packed, word_bits, bits, k, &module, all)?;
        let zeros = zeros(&packed, packing, &module)?;
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, packed.scales),
        ];
        parts.extend(packed.qzeros.map(|z| (TensorRole::ZeroPoint, z)));
        parts.extend(
            all.at(packed.base, "g_idx")
                .map(|g| (TensorRole::GroupIndex, g)),
        );
        let decoder = Box::new(Weight {
            qweight: t.part(),
            scales: Floats::ieee(&packed.scales)?,
            zeros,
            symmetric: module.flag("sym") == Some(true),
            g_idx: g_idx.map(|g| g.part()),
            packing,
            k,
            n: packed.n,
            groups: packed.groups,
            group_size,
        });
        Ok(Some(Group::new(
            packed.weight(),
            vec![packed.n, k],
            QuantScheme::Gptq,
            parts,
            decoder,
        )))
    }
}

/// Where zero points come from.
#[derive(Clone, Copy)]
enum Zeros<'m> {
    /// Packed; version 1 stores them one too low.
    Packed { part: Part<'m>, version_1: bool },
    /// The middle of the range.
    Symmetric,
}

fn zeros<'m>(packed: &Packed<'m>, packing: Packing, module: &Module<'_>) -> Result<Zeros<'m>> {
    let t = &packed.qweight;
    let format = module.text(FORMAT);
    let symmetric = module.flag("sym");
    let Some(qzeros) = packed.qzeros else {
        return match symmetric {
            Some(true) => Ok(Zeros::Symmetric),
            _ => Err(wrong(
                t,
                format!(
                    "its `{}qzeros` is missing, and no config says `sym: true`",
                    packed.base
                ),
            )),
        };
    };
    let part = qzeros.part();
    let version_1 = match format {
        Some(("gptq_v2" | "gptq_p" | "auto_round:gptqmodel" | "auto_round", _)) => false,
        // What is in planes is version 2 whatever it is called. Of Marlin these are the words before repacking.
        Some(("gptq" | "marlin" | "auto_round:auto_gptq" | "auto_round:gptq", _)) | None => {
            !packing.planes
        }
        Some((other, place)) => {
            return Err(refused(
                t,
                "GPTQ",
                format!("{place} says its format is `{other}`"),
            ));
        }
    };
    // The middle of the range, stored as it is: nonsense in version 1, where it would read as one more.
    let suspect = version_1 && (symmetric == Some(true) || format.is_none() && symmetric.is_none());
    if suspect && part.is_readable() && is_middle(&part, packed, packing)? {
        return match symmetric {
            // gptqmodel's transformers path writes version 2 under the name of version 1.
            Some(true) => Ok(Zeros::Symmetric),
            _ => {
                let what = "every zero point is stored as the middle of the range: symmetric in version 2, nonsense in version 1";
                Err(wrong(
                    &qzeros,
                    format!("{what}; `checkpoint_format` in a quantize_config.json would tell"),
                ))
            }
        };
    }
    Ok(Zeros::Packed { part, version_1 })
}

/// Whether the packed zero points are 2^(bits - 1). Those of a symmetric layer are all alike, so that the
/// beginning tells.
fn is_middle(qzeros: &Part<'_>, packed: &Packed<'_>, packing: Packing) -> Result<bool> {
    let (stride, n) = (packing.bytes(&(0..packed.n)).end, packed.n.min(1024));
    let (mut staging, mut words, mut middle) = (Vec::new(), Vec::new(), true);
    let groups: Vec<usize> = (0..packed.groups.min(4)).collect();
    for_each_zeros(
        qzeros,
        stride,
        &groups,
        packing.bytes(&(0..n)),
        &mut staging,
        &mut words,
        |_, words| {
            let mut stored = (0..n.div_ceil(CHUNK))
                .flat_map(|i| packing.unpack(words, i))
                .take(n);
            middle &= stored.all(|code| code == 1 << (packing.bits - 1));
        },
    )?;
    Ok(middle)
}

/// Rows whose zero points are looked at together: whole words of any width.
const STRIP: usize = 1024;

/// Columns of an indexed layer that are sure to lie in one tile, with all groups.
const INDEXED_COLS: usize = 64 << 10;

/// One packed linear layer.
struct Weight<'m> {
    qweight: Part<'m>,
    scales: Floats<'m>,
    zeros: Zeros<'m>,
    /// What the config says; zero points may differ.
    symmetric: bool,
    g_idx: Option<Part<'m>>,
    packing: Packing,
    k: usize,
    n: usize,
    groups: usize,
    group_size: usize,
}

impl Weight<'_> {
    /// The groups that columns `cols` use. Where they are not the even ones, `index` has for each column the
    /// place of its group among them.
    fn load_groups(
        &self,
        cols: &Range<usize>,
        index: &mut Vec<u32>,
        staging: &mut Vec<u8>,
    ) -> Result<Vec<usize>> {
        index.clear();
        let even = cols.start / self.group_size..cols.end.div_ceil(self.group_size);
        let Some(g_idx) = &self.g_idx else {
            return Ok(even.collect());
        };
        read(
            g_idx,
            self.k * 4,
            0..1,
            cols.start * 4..cols.end * 4,
            staging,
        )?;
        index.extend(staging.as_chunks().0.iter().map(|&g| u32::from_le_bytes(g)));
        if let Some(&group) = index.iter().find(|&&g| g as usize >= self.groups) {
            let (name, groups) = (g_idx.name, self.groups);
            return Err(AnamnesisError::parse(format!(
                "tensor `{name}`: group {} of {groups}",
                group as i32
            )));
        }
        if cols
            .clone()
            .zip(index.iter())
            .all(|(k, &g)| k / self.group_size == g as usize)
        {
            index.clear();
            return Ok(even.collect());
        }
        let mut used: Vec<usize> = index.iter().map(|&g| g as usize).collect();
        used.sort_unstable();
        used.dedup();
        for g in index {
            *g = used.partition_point(|&group| group < *g as usize) as u32;
        }
        Ok(used)
    }

    fn load_zeros(&self, groups: &[usize], tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers {
            zeros,
            staging,
            zero_words,
            ..
        } = buffers;
        let Packing {
            bits, word_bits, ..
        } = self.packing;
        let (count, middle) = (groups.len(), (1u32 << (bits - 1)) as f32);
        zeros.clear();
        zeros.resize(count * tile.rows.len(), middle);
        let Zeros::Packed { part, version_1 } = self.zeros else {
            return Ok(());
        };
        let stride = self.packing.bytes(&(0..self.n)).end;
        // What is added to each by itself.
        let one = u32::from(version_1 && self.packing.straddles());
        let mask = (1 << bits) - 1;
        for_each_zeros(
            &part,
            stride,
            groups,
            self.packing.bytes(&tile.rows),
            staging,
            zero_words,
            |g, words| {
                if version_1 {
                    restore_zeros(words, bits, word_bits);
                }
                for (i, rows) in zeros.chunks_mut(CHUNK * count).enumerate() {
                    let codes = self.packing.unpack(words, i);
                    for (row, code) in rows.chunks_exact_mut(count).zip(codes) {
                        row[g] = ((code + one) & mask) as f32;
                    }
                }
            },
        )
    }

    /// Whether columns lie in groups in their order.
    fn is_in_order(&self) -> Result<bool> {
        let mut index = Vec::new();
        self.load_groups(&(0..self.k), &mut index, &mut Vec::new())?;
        Ok(index.is_empty())
    }

    /// Whether every zero point is the middle of the range.
    fn is_symmetric(&self) -> Result<bool> {
        if !self.symmetric || matches!(self.zeros, Zeros::Symmetric) {
            return Ok(self.symmetric);
        }
        let (groups, middle): (Vec<usize>, f32) = (
            (0..self.groups).collect(),
            (1u32 << (self.packing.bits - 1)) as f32,
        );
        let mut buffers = Buffers::default();
        for first in (0..self.n).step_by(STRIP) {
            let tile = Tile {
                rows: first..(first + STRIP).min(self.n),
                cols: 0..self.k,
            };
            self.load_zeros(&groups, &tile, &mut buffers)?;
            if buffers.zeros.iter().any(|&zero| zero != middle) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn run<const BITS: usize, const PLANES: bool>(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (count, first) = (rows.len(), rows.start - tile.rows.start);
        let words_per_row = buffers.words.len() / tile.rows.len();
        let groups = buffers.scales.len() / tile.rows.len();
        let columns = if buffers.index.is_empty() {
            Columns::Even {
                size: self.group_size,
                start: tile.cols.start % self.group_size,
            }
        } else {
            Columns::Indexed(&buffers.index)
        };
        let kernel = Rows::<BITS, PLANES> {
            words: &buffers.words[first * words_per_row..(first + count) * words_per_row],
            words_per_row,
            cols: tile.cols.len(),
            scales: &buffers.scales[first * groups..(first + count) * groups],
            zeros: &buffers.zeros[first * groups..(first + count) * groups],
            groups,
            columns,
        };
        dispatch(level, &kernel, out);
    }
}

impl Decode for Weight<'_> {
    fn grid(&self) -> Grid {
        // A tile of some of the columns can still name any group, so each of its columns may bring one.
        let scattered = self.g_idx.is_some() && self.k > INDEXED_COLS;
        let groups = if scattered {
            1.0
        } else {
            self.groups as f64 / self.k as f64
        };
        let load_bits = self.packing.bits as f64 + 64.0 * groups;
        Grid {
            rows: self.n,
            cols: self.k,
            row_align: CHUNK,
            col_align: CHUNK,
            load_bits,
            transposed: true,
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Packing {
            bits, word_bits, ..
        } = self.packing;
        let words = tile.cols.start * bits / word_bits..(tile.cols.end * bits).div_ceil(word_bits);
        let (part, n, rows) = (&self.qweight, self.n, tile.rows.clone());
        match word_bits {
            8 => load::read_transposed::<1>(
                part,
                n,
                words,
                rows,
                &mut buffers.staging,
                &mut buffers.words,
            )?,
            16 => load::read_transposed::<2>(
                part,
                n,
                words,
                rows,
                &mut buffers.staging,
                &mut buffers.words,
            )?,
            _ => load::read_transposed::<4>(
                part,
                n,
                words,
                rows,
                &mut buffers.staging,
                &mut buffers.words,
            )?,
        }
        let groups = self.load_groups(&tile.cols, &mut buffers.index, &mut buffers.staging)?;
        let Buffers {
            staging,
            row,
            scales,
            ..
        } = buffers;
        load_scales(
            &self.scales,
            self.n,
            &groups,
            tile.rows.clone(),
            staging,
            row,
            scales,
        )?;
        self.load_zeros(&groups, tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        macro_rules! run {
            ($bits:literal, $planes:literal) => {
                self.run::<$bits, $planes>(tile, rows, buffers, level, out)
            };
        }
        match (self.packing.bits, self.packing.planes) {
            (2, _) => run!(2, false),
            (3, false) => run!(3, false),
            (3, true) => run!(3, true),
            (4, _) => run!(4, false),
            (5, false) => run!(5, false),
            (5, true) => run!(5, true),
            (6, false) => run!(6, false),
            (6, true) => run!(6, true),
            (7, false) => run!(7, false),
            (7, true) => run!(7, true),
            _ => run!(8, false),
        }
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let stores_symmetric = self.symmetric && matches!(self.zeros, Zeros::Packed { .. });
        let needs_data = self.g_idx.is_some() || stores_symmetric;
        // A model of a header alone has no data to decide by, and none to relay either.
        if needs_data && !self.qweight.is_readable() || !self.is_in_order()? {
            return Ok(None);
        }
        let family = CodeFamily::int(
            self.packing.bits,
            self.group_size,
            self.k,
            self.scales.dtype(),
            self.is_symmetric()?,
        );
        let packing = self.packing;
        Ok(family.map(|family| RelaySource::new(family, GptqCodes { packing })))
    }
}

/// How the codes of a layer lie in its decoder's buffers.
struct GptqCodes {
    packing: Packing,
}

impl ExtractCodes for GptqCodes {
    fn extract(&self, [rows, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        let words_per_row = buffers.words.len() / rows.max(1);
        out.codes.clear();
        for words in buffers.words.chunks_exact(words_per_row.max(1)) {
            let codes = (0..cols.div_ceil(CHUNK)).flat_map(|i| self.packing.unpack(words, i));
            out.codes.extend(codes.take(cols).map(|code| code as u8));
        }
        out.scales.clone_from(&buffers.scales);
        out.zero_points.clear();
        out.zero_points
            .extend(buffers.zeros.iter().map(|&zero| zero as u8));
    }
}
