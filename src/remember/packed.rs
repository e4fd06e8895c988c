//! What GPTQ and AWQ share on disk: `X.qweight`, `X.scales`, `X.qzeros` and their panels.

use std::ops::Range;

use crate::config::{Module, QuantMethod};
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::{Formula, GroupedRows, Int};
use crate::remember::seam::grouped::row_groups;
use crate::remember::seam::{Buffers, Floats, Index, Tile, base_of, read, refused, wrong};
use crate::{Dtype, Result};

/// The tensors of one packed linear layer.
pub(crate) struct PackedLayer<'m> {
    /// Name up to and with the last dot.
    pub base: &'m str,
    pub qweight: Tensor<'m>,
    pub scales: Tensor<'m>,
    pub qzeros: Option<Tensor<'m>>,
    /// Rows and columns of `qweight`.
    pub words: [usize; 2],
    /// Rows and columns of the scales; of most layouts groups and output features.
    pub groups: usize,
    pub n: usize,
}

/// How `qweight` is laid out, told from the shapes of it, of the scales and of the zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackedLayout {
    /// `[in * bits / 32, out]`, scales `[groups, out]`.
    Gptq,
    /// AWQ GEMM: `[in, out * bits / 32]`, scales `[groups, out]`.
    Gemm { bits: usize },
    /// AWQ GEMV: `[out, in / 8]`, scales `[out, 8 * zw]`, zero points `[out, zw]`.
    Gemv,
    /// AWQ GEMV-fast, llm-awq: I16 `[out / 4, in]`, scales and float zeros `[8 * zw, out]`.
    GemvFast,
    /// AWQ Marlin: `[in / 16, 2 * out]`, scales `[groups, out]`, no zero points.
    Marlin,
}

impl PackedLayout {
    /// The layout's name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Gptq => "GPTQ",
            Self::Gemm { .. } => "AWQ GEMM",
            Self::Gemv => "AWQ GEMV",
            Self::GemvFast => "AWQ GEMV-fast",
            Self::Marlin => "AWQ Marlin",
        }
    }
}

impl<'m> PackedLayer<'m> {
    /// The widths in `fitting` and the shapes that they were told from, for a message.
    pub(crate) fn shapes(&self, g_idx: Option<&Tensor<'_>>, fitting: &[(usize, usize)]) -> String {
        let widths: Vec<String> = fitting.iter().map(|(bits, _)| bits.to_string()).collect();
        let widths = if widths.is_empty() {
            "none".to_owned()
        } else {
            widths.join(" or ")
        };
        let (zeros, index) = (self.qzeros.as_ref().map(Tensor::shape), g_idx.map(Tensor::shape));
        format!(
            "scales {:?}, qzeros {zeros:?} and g_idx {index:?} fit {widths}",
            self.scales.shape()
        )
    }

    /// The layer of `t` if that is a `qweight`, else `None`.
    ///
    /// # Errors
    /// Scales are missing, or a tensor has no elements or not two dimensions.
    pub(crate) fn find(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Self>> {
        let Some(base) = base_of(t.name(), "qweight") else {
            return Ok(None);
        };
        // transformers gives layers that hold a rotated weight such a tensor
        // (`FpQuantDeserialize`).
        if t.elements() == 0 && all.config.quant_method() == Some(&QuantMethod::FpQuant) {
            return Ok(None);
        }
        // Blocks of ggml, which have their scales in them.
        if t.dtype() == Dtype::U8 && all.config.quant_method() == Some(&QuantMethod::Gguf) {
            return Ok(None);
        }
        let scales = all.need(t, base, "scales")?;
        let &[rows, cols] = t.shape() else {
            return Err(wrong(t, "a qweight has two dimensions"));
        };
        let &[groups, n] = scales.shape() else {
            return Err(wrong(&scales, "scales have two dimensions"));
        };
        // Without a word or a scale every width would fit (0 = 0), and the number of groups divides
        // below.
        if t.elements() == 0 || scales.elements() == 0 {
            return Err(wrong(t, "there is nothing in it"));
        }
        // AutoAWQ calls the float zero points of GEMV-fast `qzeros`, llm-awq calls them
        // `scaled_zeros`. No file has both names.
        let qzeros = all
            .at(base, "scaled_zeros")
            .or_else(|| all.at(base, "qzeros"));
        Ok(Some(Self { base, qweight: *t, scales, qzeros, words: [rows, cols], groups, n }))
    }

    /// The name of the module.
    pub(crate) fn module(&self) -> &'m str {
        self.base.trim_end_matches('.')
    }

    /// The name of the decoded weight.
    pub(crate) fn weight(&self) -> String {
        format!("{}weight", self.base)
    }

    /// The layout that the shapes prove, or the config where two fit.
    ///
    /// # Errors
    /// No layout fits, or two do and no config tells.
    pub(crate) fn layout(&self, all: &Index<'m>) -> Result<PackedLayout> {
        let t = &self.qweight;
        // Only GEMV-fast has floats for zero points: its packer stores `-z * s` (autoawq
        // `gemv_fast.py`). Whether the shapes fit is checked when the layer is claimed.
        if t.dtype() == Dtype::I16 && self.qzeros.is_some_and(|z| z.dtype().is_floating_point()) {
            return Ok(PackedLayout::GemvFast);
        }
        let cols = self.words[1];
        // Products rather than quotients: `n * bits / 32` would round down, and accept a width that
        // does not fit. AWQ has 4 bits, AutoRound's `pack_awq_bitstream` also 5 to 7.
        let bits = (4..8).find(|&bits| cols.checked_mul(32) == self.n.checked_mul(bits));
        let found = match bits {
            // GPTQ packs down the columns, so its words are as wide as the scales. No width of AWQ
            // is: that would be 32 bits.
            _ if cols == self.n => Some(PackedLayout::Gptq),
            Some(bits) => Some(PackedLayout::Gemm { bits }),
            // Marlin has `2 * n` words in a row, for 16 inputs of 4 bits. Its codes are symmetric,
            // so that zero points rule it out.
            None if self.n.checked_mul(2) == Some(cols) && self.qzeros.is_none() => {
                Some(PackedLayout::Marlin)
            }
            None => None,
        };
        match (found, self.is_gemv()) {
            (Some(layout), false) => Ok(layout),
            (None, true) => Ok(PackedLayout::Gemv),
            // Both fit where codes and scales have equally many rows: those of GEMV are outputs,
            // those of the others would be groups of very few inputs. AutoAWQ's `version` decides,
            // or GPTQ's method, which has no GEMV.
            (Some(layout), true) => match (version(all), all.config.quant_method()) {
                (Some(("gemv", _)), _) => Ok(PackedLayout::Gemv),
                (Some(_), _) | (_, Some(QuantMethod::Gptq)) => Ok(layout),
                _ => Err(wrong(
                    t,
                    format!("it can be {} or {}, and no config tells", layout.name(), "AWQ GEMV"),
                )),
            },
            (None, false) => {
                let scales = self.scales.shape();
                Err(wrong(t, format!("with scales {scales:?} it is neither GPTQ nor AWQ")))
            }
        }
    }

    fn is_gemv(&self) -> bool {
        // GEMV's shapes: `qweight [N, K/8]`, `scales [N, 8*zw]`, `qzeros [N, zw]`. The padding of
        // `zw` makes `8*zw` larger than the number of groups, so the groups themselves prove
        // nothing here.
        let zeros = self.qzeros.as_ref().map(Tensor::shape);
        let fits = |zeros: &[usize]| matches!(*zeros, [rows, zw] if rows == self.words[0] && zw.checked_mul(8) == Some(self.n));
        self.words[0] == self.groups && zeros.is_some_and(fits)
    }

    /// Checks that codes and zero points are words of one of `dtypes`, the first of which the
    /// message names.
    pub(crate) fn check_words(&self, dtypes: &[Dtype]) -> Result<()> {
        for words in [Some(self.qweight), self.qzeros].into_iter().flatten() {
            if !dtypes.contains(&words.dtype()) {
                return Err(refused(&words, "packed integers", format!("words are {}", dtypes[0])));
            }
        }
        Ok(())
    }

    /// Checks `layout`, which the shapes prove to be AWQ's, against the config.
    pub(crate) fn check_awq(
        &self,
        layout: PackedLayout,
        module: &Module<'_>,
        all: &Index<'_>,
    ) -> Result<()> {
        let t = &self.qweight;
        // The shapes alone decide between GPTQ and AWQ, because both are read as I32 words. A
        // config that names the other one is not overruled: one of the two is wrong, and the
        // weights would be garbage.
        if all.config.quant_method() == Some(&QuantMethod::Gptq) {
            return Err(wrong(t, "the config says GPTQ, and the shapes say AWQ"));
        }
        // AutoRound has one `quant_method` for GPTQ and AWQ layers; `packing_format` is what names
        // the layout.
        if let Some((format, place)) = module
            .text(&["packing_format"])
            .filter(|(f, _)| f.ends_with("gptq"))
        {
            return Err(wrong(t, format!("{place} says `{format}`, and the shapes say AWQ")));
        }
        let bits = if let PackedLayout::Gemm { bits } = layout {
            bits
        } else {
            4
        };
        // With patterns that are not understood, the general number of bits may belong to other
        // modules. The shapes have proved the bits already.
        let configured = module
            .int(&["bits", "w_bit"])
            .filter(|(b, _)| *b != bits as i64 && !module.uncertain);
        if let Some((configured, place)) = configured {
            return Err(wrong(
                t,
                format!("{place} says {configured} bits, and the shapes say {bits}"),
            ));
        }
        let Some((version, place)) = version(all) else {
            return Ok(());
        };
        let says = match version {
            "gemm" => matches!(layout, PackedLayout::Gemm { .. }),
            "gemv" => layout == PackedLayout::Gemv,
            "gemv_fast" | "llm-awq" => layout == PackedLayout::GemvFast,
            // gptqmodel calls words of GEMM so, and repacks them when it loads them.
            "marlin" => matches!(layout, PackedLayout::Gemm { .. } | PackedLayout::Marlin),
            other => {
                return Err(refused(
                    t,
                    "AWQ",
                    format!("{place} says version `{other}`, which is not decoded"),
                ));
            }
        };
        let name = layout.name();
        if says {
            Ok(())
        } else {
            Err(wrong(t, format!("{place} says version `{version}`, and the shapes say {name}")))
        }
    }
}

/// AWQ's `version`, which gptqmodel writes as the format, and the place in the config that says it.
fn version<'m>(all: &Index<'m>) -> Option<(&'m str, &'m str)> {
    let format = || {
        // GPTQ configs have the key as well, and mean the convention of zero points by it.
        let is_awq = all.config.quant_method() == Some(&QuantMethod::Awq);
        all.config
            .text(&["checkpoint_format", "format"])
            .filter(|_| is_awq)
    };
    let (version, place) = all.config.text(&["version"]).or_else(format)?;
    // Files have `GEMM` as well as `gemm`.
    let known = ["gemm", "gemv", "gemv_fast", "llm-awq", "marlin"];
    Some((
        known
            .into_iter()
            .find(|known| version.eq_ignore_ascii_case(known))
            .unwrap_or(version),
        place,
    ))
}

/// Replaces `out` with the scales of groups `groups` and columns `cols`, a row for each column:
/// `out[c * groups.len() + g]`.
pub(crate) fn load_scales(
    scales: &Floats<'_>,
    stride: usize,
    groups: &[usize],
    cols: Range<usize>,
    staging: &mut Vec<u8>,
    row: &mut Vec<f32>,
    out: &mut Vec<f32>,
) -> Result<()> {
    let count = groups.len();
    // A row of the output is a column of the stored scales, so `[groups, cols]` becomes `[cols,
    // groups]` here, once, and not in the kernel, once a value.
    out.resize(count * cols.len(), 0.0);
    for (g, &group) in groups.iter().enumerate() {
        row.clear();
        scales.extend(stride, group..group + 1, cols.clone(), staging, row)?;
        for (out, &scale) in out.chunks_exact_mut(count).zip(row.iter()) {
            out[g] = scale;
        }
    }
    Ok(())
}

/// Calls `each(group, words)` with bytes `cols` of each group's packed zero points, `stride` bytes
/// a group, as words of 32 bits.
pub(crate) fn for_each_zeros(
    qzeros: &Part<'_>,
    stride: usize,
    groups: &[usize],
    cols: Range<usize>,
    staging: &mut Vec<u8>,
    words: &mut Vec<u32>,
    mut each: impl FnMut(usize, &mut [u32]),
) -> Result<()> {
    for (g, &group) in groups.iter().enumerate() {
        read(qzeros, stride, group..group + 1, cols.clone(), staging)?;
        // Words of 8 or 16 bits can end within one of 32.
        staging.resize(cols.len().next_multiple_of(4), 0);
        words.clear();
        words.extend(
            staging
                .as_chunks()
                .0
                .iter()
                .map(|&word| u32::from_le_bytes(word)),
        );
        each(g, words);
    }
    Ok(())
}

/// Codes of a tile's rows, once they are transposed: bit streams, least significant bit first.
pub(crate) struct BitStreams<'a> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Stored bits of a code.
    pub bits: usize,
    /// Every code is below two to this power.
    pub code_bits: usize,
}

/// Rows `rows` of a loaded tile of a layer with `k` inputs in groups of `group_size`: codes less
/// their zero points, times their scales.
pub(crate) fn grouped_rows<'a>(
    codes: &BitStreams<'a>,
    [k, group_size]: [usize; 2],
    tile: &Tile,
    rows: Range<usize>,
    buffers: &'a Buffers,
) -> GroupedRows<'a, Int> {
    GroupedRows {
        bytes: &codes.bytes[(rows.start - tile.rows.start) * codes.row_bytes..],
        row_bytes: codes.row_bytes,
        bits: codes.bits,
        code_bits: codes.code_bits,
        rows,
        cols: tile.cols.clone(),
        format: Int::UNSIGNED,
        grid: row_groups(k, group_size),
        scales: &buffers.scales,
        offsets: &buffers.zeros,
        scale_rows: tile.rows.clone(),
        scale_cols: tile.cols.start / group_size..tile.cols.end.div_ceil(group_size),
        formula: Formula::ShiftScale,
        // The difference of two integers is exact and the product is rounded once, so a compute
        // dtype changes nothing.
        round: false,
        columns: &[],
    }
}
