//! The mirror image of the scheme that is decoded.

use super::ForgetScheme;

/// The schemes to encode to that have the name of one to decode, [`crate::QuantScheme`].
/// [`ForgetScheme`] has all schemes, with their parameters.
///
/// ```no_run
/// use anamnesis::lethe::QuantScheme;
///
/// # fn main() -> anamnesis::Result<()> {
/// anamnesis::parse("model-BF16")?.forget("model-FP8", QuantScheme::FineGrainedFp8)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuantScheme {
    /// FP8 (E4M3) with a scale for each block of 128x128 values: [`ForgetScheme::FP8_BLOCK`].
    FineGrainedFp8,
    /// FP8 (E4M3) with a scale for each row: [`ForgetScheme::FP8_CHANNEL`].
    PerChannelFp8,
    /// FP8 (E4M3) with one scale for each tensor: [`ForgetScheme::FP8`].
    PerTensorFp8,
    /// [`ForgetScheme::GPTQ`].
    Gptq,
    /// [`ForgetScheme::AWQ`].
    Awq,
    /// NF4 of BitsAndBytes: [`ForgetScheme::NF4`].
    Bnb4,
    /// LLM.int8() of BitsAndBytes: [`ForgetScheme::INT8`].
    BnbInt8,
    /// [`ForgetScheme::NVFP4`].
    Nvfp4,
}

impl From<QuantScheme> for ForgetScheme {
    fn from(scheme: QuantScheme) -> Self {
        match scheme {
            QuantScheme::FineGrainedFp8 => Self::FP8_BLOCK,
            QuantScheme::PerChannelFp8 => Self::FP8_CHANNEL,
            QuantScheme::PerTensorFp8 => Self::FP8,
            QuantScheme::Gptq => Self::GPTQ,
            QuantScheme::Awq => Self::AWQ,
            QuantScheme::Bnb4 => Self::NF4,
            QuantScheme::BnbInt8 => Self::INT8,
            QuantScheme::Nvfp4 => Self::NVFP4,
        }
    }
}
