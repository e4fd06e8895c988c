//! Look-ups in a [`SafetensorsHeader`]: tensors by their role, and the companions of a quantized
//! weight. They are for callers with a decoder of their own; this crate's schemes do not use them.

use super::{SafetensorsHeader, TensorEntry};
use crate::{QuantScheme, TensorRole};

/// Parameters of a file's GPTQ layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct GptqConfig {
    /// Bits of a code.
    pub bits: u8,
    /// Inputs that share a scale.
    pub group_size: usize,
}

/// Parameters of a file's AWQ layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct AwqConfig {
    /// Bits of a code.
    pub bits: u8,
    /// Inputs that share a scale.
    pub group_size: usize,
}

/// Parameters of a file's 4-bit BitsAndBytes weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct BnbConfig {
    /// Values that share a scale.
    pub block_size: usize,
    /// Whether the scales are quantized as well.
    pub double_quant: bool,
}

/// Companions of the weight `X.qweight` of a GPTQ layer.
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

/// Companions of the weight `X.qweight` of an AWQ layer.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AwqCompanions<'a> {
    /// `X.scales`.
    pub scales: &'a TensorEntry,
    /// `X.qzeros`.
    pub qzeros: &'a TensorEntry,
}

/// Companions of a 4-bit weight `X` of BitsAndBytes.
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

    /// Finds the scale of an FP8 weight `X`: `X_scale_inv`, or else `X_scale`.
    #[must_use]
    pub fn find_scale_for(&self, weight: &str) -> Option<&TensorEntry> {
        self.at(weight, "_scale_inv")
            .or_else(|| self.at(weight, "_scale"))
    }

    /// Finds the companions of the GPTQ weight `X.qweight`; `None` if scales or zero points are
    /// missing.
    #[must_use]
    pub fn find_gptq_companions(&self, qweight: &str) -> Option<GptqCompanions<'_>> {
        let base = qweight.strip_suffix("qweight")?;
        let (scales, qzeros) = (self.at(base, "scales")?, self.at(base, "qzeros")?);
        Some(GptqCompanions { scales, qzeros, g_idx: self.at(base, "g_idx") })
    }

    /// Finds the companions of the AWQ weight `X.qweight`; `None` if one is missing.
    #[must_use]
    pub fn find_awq_companions(&self, qweight: &str) -> Option<AwqCompanions<'_>> {
        let GptqCompanions { scales, qzeros, .. } = self.find_gptq_companions(qweight)?;
        Some(AwqCompanions { scales, qzeros })
    }

    /// Finds the companions of a 4-bit BitsAndBytes weight; `None` if its scales or codebook are
    /// missing.
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

    /// Finds the scales `X.SCB` of an INT8 BitsAndBytes weight `X.weight`.
    #[must_use]
    pub fn find_bnb_int8_scb(&self, weight: &str) -> Option<&TensorEntry> {
        self.at(weight.strip_suffix("weight")?, "SCB")
    }

    /// Fills in the parameters of the scheme, from the shapes of the first quantized weight.
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

    /// The parameters that the shapes of a GPTQ layer imply. `qzeros` packs one code for each
    /// output, so the ratio of its columns to the outputs gives the bits of a code.
    fn gptq(&self, first: &TensorEntry) -> Option<GptqConfig> {
        let GptqCompanions { scales, qzeros, .. } = self.find_gptq_companions(&first.name)?;
        let (&[rows, _], &[groups, outputs], &[_, words]) =
            (&*first.shape, &*scales.shape, &*qzeros.shape)
        else {
            return None;
        };
        let bits = bits_of_codes(words, outputs)?;
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
        let bits = bits_of_codes(words, outputs)?;
        Some(AwqConfig { bits: bits as u8, group_size: inputs.checked_div(groups)? })
    }

    /// The parameters that the shapes of a BitsAndBytes weight imply. The last block can be
    /// shorter, and block sizes are powers of two, so the quotient is rounded up to the next one.
    fn bnb(&self, first: &TensorEntry) -> Option<BnbConfig> {
        let Bnb4Companions { absmax, nested_absmax, .. } =
            self.find_bnb4_companions(&first.name)?;
        let (values, blocks) = (first.byte_len().checked_mul(2)?, absmax.num_elements());
        let block_size = if blocks == 0 {
            return None;
        } else {
            values.div_ceil(blocks).checked_next_power_of_two()?
        };
        Some(BnbConfig { block_size, double_quant: nested_absmax.is_some() })
    }
}

/// Bits of a code, of which `words` words of 32 bits hold one for each of `outputs`.
fn bits_of_codes(words: usize, outputs: usize) -> Option<usize> {
    let bits = words.checked_mul(32)?.checked_div(outputs)?;
    (1..=8).contains(&bits).then_some(bits)
}
