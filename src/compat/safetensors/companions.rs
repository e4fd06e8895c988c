//! A header's tensors by what they are for, and what belongs to a quantized weight: for callers who decode for
//! themselves.

use super::{SafetensorsHeader, TensorEntry};
use crate::{QuantScheme, TensorRole};

/// How a file's GPTQ layers are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GptqConfig {
    /// Bits of a code.
    pub bits: u8,
    /// Inputs that share a scale.
    pub group_size: usize,
}

/// How a file's AWQ layers are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AwqConfig {
    /// Bits of a code.
    pub bits: u8,
    /// Inputs that share a scale.
    pub group_size: usize,
}

/// How a file's 4-bit BitsAndBytes weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BnbConfig {
    /// Values that share a scale.
    pub block_size: usize,
    /// Whether the scales are quantized themselves.
    pub double_quant: bool,
}

/// What belongs to the `X.qweight` of a GPTQ layer.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct GptqCompanions<'a> {
    /// `X.scales`.
    pub scales: &'a TensorEntry,
    /// `X.qzeros`.
    pub qzeros: &'a TensorEntry,
    /// `X.g_idx`.
    pub g_idx: Option<&'a TensorEntry>,
}

/// What belongs to the `X.qweight` of an AWQ layer.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AwqCompanions<'a> {
    /// `X.scales`.
    pub scales: &'a TensorEntry,
    /// `X.qzeros`.
    pub qzeros: &'a TensorEntry,
}

/// What belongs to a 4-bit weight `X` of BitsAndBytes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Bnb4Companions<'a> {
    /// `X.absmax`.
    pub absmax: &'a TensorEntry,
    /// `X.quant_map`.
    pub quant_map: &'a TensorEntry,
    /// `X.nested_absmax`.
    pub nested_absmax: Option<&'a TensorEntry>,
    /// `X.nested_quant_map`.
    pub nested_quant_map: Option<&'a TensorEntry>,
    /// `X.quant_state.bitsandbytes__nf4` or `…__fp4`.
    pub quant_state: Option<&'a TensorEntry>,
}

impl TensorEntry {
    /// Number of elements.
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Bytes of the data.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.data_offsets.1 - self.data_offsets.0
    }
}

macro_rules! roles {
    ($($role:ident $tensors:ident $count:ident $what:literal;)*) => {
        impl SafetensorsHeader {
            $(
                #[doc = concat!("The tensors that are ", $what, ".")]
                pub fn $tensors(&self) -> impl Iterator<Item = &TensorEntry> {
                    self.tensors.iter().filter(|t| t.role == TensorRole::$role)
                }

                #[doc = concat!("Number of tensors that are ", $what, ".")]
                #[must_use]
                pub fn $count(&self) -> usize {
                    self.$tensors().count()
                }
            )*
        }
    };
}

roles! {
    Quantized quantized_tensors quantized_count "codes of quantized weights";
    Scale scale_tensors scale_count "scales";
    Passthrough passthrough_tensors passthrough_count "not quantized";
    ZeroPoint zeropoint_tensors zeropoint_count "zero points";
    GroupIndex group_index_tensors group_index_count "column-to-group maps";
    QuantMap quant_map_tensors quant_map_count "codebooks";
    NestedScale nested_scale_tensors nested_scale_count "scales of scales";
}

impl SafetensorsHeader {
    fn at(&self, base: &str, end: &str) -> Option<&TensorEntry> {
        self.tensors
            .iter()
            .find(|t| t.name.strip_prefix(base) == Some(end))
    }

    /// The scale of an FP8 weight: `X_scale_inv`, or else `X_scale`.
    #[must_use]
    pub fn find_scale_for(&self, weight: &str) -> Option<&TensorEntry> {
        self.at(weight, "_scale_inv")
            .or_else(|| self.at(weight, "_scale"))
    }

    /// What belongs to the GPTQ weight `X.qweight`.
    #[must_use]
    pub fn find_gptq_companions(&self, qweight: &str) -> Option<GptqCompanions<'_>> {
        let base = qweight.strip_suffix("qweight")?;
        let (scales, qzeros) = (self.at(base, "scales")?, self.at(base, "qzeros")?);
        Some(GptqCompanions {
            scales,
            qzeros,
            g_idx: self.at(base, "g_idx"),
        })
    }

    /// What belongs to the AWQ weight `X.qweight`.
    #[must_use]
    pub fn find_awq_companions(&self, qweight: &str) -> Option<AwqCompanions<'_>> {
        let GptqCompanions { scales, qzeros, .. } = self.find_gptq_companions(qweight)?;
        Some(AwqCompanions { scales, qzeros })
    }

    /// What belongs to a 4-bit weight of BitsAndBytes.
    #[must_use]
    pub fn find_bnb4_companions(&self, weight: &str) -> Option<Bnb4Companions<'_>> {
        let state = |kind| self.at(weight, &format!(".quant_state.bitsandbytes__{kind}"));
        Some(Bnb4Companions {
            absmax: self.at(weight, ".absmax")?,
            quant_map: self.at(weight, ".quant_map")?,
            nested_absmax: self.at(weight, ".nested_absmax"),
            nested_quant_map: self.at(weight, ".nested_quant_map"),
            quant_state: state("nf4").or_else(|| state("fp4")),
        })
    }

    /// The scales of an INT8 weight of BitsAndBytes: `X.SCB` of `X.weight`.
    #[must_use]
    pub fn find_bnb_int8_scb(&self, weight: &str) -> Option<&TensorEntry> {
        self.at(weight.strip_suffix("weight")?, "SCB")
    }

    /// Fills in what the shapes of the first quantized weight say.
    pub(super) fn describe(&mut self) {
        let Some(first) = self.quantized_tensors().next() else {
            return;
        };
        match self.scheme {
            QuantScheme::Gptq => self.gptq_config = self.gptq(first),
            QuantScheme::Awq => self.awq_config = self.awq(first),
            QuantScheme::Bnb4 => self.bnb_config = self.bnb(first),
            _ => {}
        }
    }

    /// Zero points have a code for each output, so that their width is the codes'.
    fn gptq(&self, first: &TensorEntry) -> Option<GptqConfig> {
        let GptqCompanions { scales, qzeros, .. } = self.find_gptq_companions(&first.name)?;
        let (&[rows, _], &[groups, outputs], &[_, words]) =
            (&*first.shape, &*scales.shape, &*qzeros.shape)
        else {
            return None;
        };
        let bits = words
            .checked_mul(32)?
            .checked_div(outputs)
            .filter(|bits| (1..=8).contains(bits))?;
        Some(GptqConfig {
            bits: bits as u8,
            group_size: (rows.checked_mul(32)? / bits).checked_div(groups)?,
        })
    }

    fn awq(&self, first: &TensorEntry) -> Option<AwqConfig> {
        let AwqCompanions { scales, .. } = self.find_awq_companions(&first.name)?;
        let (&[inputs, words], &[groups, outputs]) = (&*first.shape, &*scales.shape) else {
            return None;
        };
        let bits = words
            .checked_mul(32)?
            .checked_div(outputs)
            .filter(|bits| (1..=8).contains(bits))?;
        Some(AwqConfig {
            bits: bits as u8,
            group_size: inputs.checked_div(groups)?,
        })
    }

    /// The last block can be smaller, and blocks are powers of two.
    fn bnb(&self, first: &TensorEntry) -> Option<BnbConfig> {
        let Bnb4Companions {
            absmax,
            nested_absmax,
            ..
        } = self.find_bnb4_companions(&first.name)?;
        let (values, blocks) = (first.byte_len().checked_mul(2)?, absmax.num_elements());
        let block_size = if blocks == 0 {
            return None;
        } else {
            values.div_ceil(blocks).checked_next_power_of_two()?
        };
        Some(BnbConfig {
            block_size,
            double_quant: nested_absmax.is_some(),
        })
    }
}
