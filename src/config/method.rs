//! `quant_method`: the name that a config gives to the quantization of its model.

/// A value of `quant_method`, whatever its spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QuantMethod {
    Aqlm,
    AutoRound,
    Awq,
    BitNet,
    BitsAndBytes,
    /// sglang's.
    BlockwiseInt8,
    CompressedTensors,
    Eetq,
    /// exllamav2's.
    Exl2,
    /// exllamav3's.
    Exl3,
    FbgemmFp8,
    Fp8,
    FpQuant,
    Gemma,
    /// gptqmodel's, for blocks of ggml in its own layers.
    Gguf,
    Gptq,
    Higgs,
    Hqq,
    /// transformers' name for MLX's layout.
    Metal,
    /// sglang's: MXFP8, and experts of NVFP4.
    MiniMaxM3Nvfp4,
    ModelOpt,
    Mxfp4,
    Mxfp8,
    /// nunchaku's layers in models of diffusers.
    NunchakuLite,
    ParoQuant,
    Qqq,
    Quanto,
    Quark,
    Sdnq,
    Spqr,
    /// nunchaku's own models.
    SvdQuant,
    Sinq,
    Torchao,
    Vptq,
    /// sglang's: experts of four bits, FP8 elsewhere.
    W4aFp8,
    W8a8Fp8,
    W8a8Int8,
    /// A method that no scheme here belongs to, in lower case.
    Other(String),
}

/// How each method is spelled, in lower case.
const SPELLINGS: &[(QuantMethod, &[&str])] = &[
    (QuantMethod::Aqlm, &["aqlm"]),
    (
        QuantMethod::AutoRound,
        // Old releases of AutoRound wrote the name of their repository. `inc` is vLLM's name.
        &["auto-round", "auto_round", "inc", "intel/auto-round"],
    ),
    (QuantMethod::Awq, &["awq"]),
    (QuantMethod::BitNet, &["bitnet"]),
    (QuantMethod::BitsAndBytes, &["bitsandbytes"]),
    (QuantMethod::BlockwiseInt8, &["blockwise_int8"]),
    (QuantMethod::CompressedTensors, &["compressed-tensors"]),
    (QuantMethod::Eetq, &["eetq"]),
    (QuantMethod::Exl2, &["exl2"]),
    (QuantMethod::Exl3, &["exl3"]),
    (QuantMethod::FbgemmFp8, &["fbgemm_fp8"]),
    // vLLM takes the second name for the first where the model is DeepSeek-V4.
    (QuantMethod::Fp8, &["fp8", "deepseek_v4_fp8"]),
    (QuantMethod::FpQuant, &["fp_quant"]),
    (QuantMethod::Gemma, &["gemma"]),
    (QuantMethod::Gguf, &["gguf"]),
    (QuantMethod::Gptq, &["gptq"]),
    (QuantMethod::Higgs, &["higgs"]),
    (QuantMethod::Hqq, &["hqq"]),
    (QuantMethod::Metal, &["metal"]),
    (QuantMethod::MiniMaxM3Nvfp4, &["minimax_m3_nvfp4"]),
    (QuantMethod::Mxfp4, &["mxfp4", "gpt_oss_mxfp4"]),
    (QuantMethod::Mxfp8, &["mxfp8"]),
    (QuantMethod::NunchakuLite, &["nunchaku_lite"]),
    (QuantMethod::ParoQuant, &["paroquant"]),
    (QuantMethod::Qqq, &["qqq"]),
    (QuantMethod::Quanto, &["quanto"]),
    (QuantMethod::Quark, &["quark"]),
    (QuantMethod::Sdnq, &["sdnq"]),
    (QuantMethod::Spqr, &["spqr"]),
    (QuantMethod::SvdQuant, &["svdquant"]),
    (QuantMethod::Sinq, &["sinq"]),
    (QuantMethod::Torchao, &["torchao"]),
    (QuantMethod::Vptq, &["vptq"]),
    (QuantMethod::W4aFp8, &["w4afp8"]),
    (QuantMethod::W8a8Fp8, &["w8a8_fp8"]),
    (QuantMethod::W8a8Int8, &["w8a8_int8"]),
];

/// Beginnings of spellings. vLLM has a method for each kind of ModelOpt's: `modelopt_fp4`,
/// `modelopt_mixed`, ….
const PREFIXES: &[(QuantMethod, &str)] = &[(QuantMethod::ModelOpt, "modelopt")];

impl QuantMethod {
    /// The method that `text` names, in upper or lower case.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.to_lowercase();
        // Exact spellings first: a method whose name merely begins like a prefix would be shadowed
        // otherwise.
        let exact = SPELLINGS
            .iter()
            .find(|(_, spellings)| spellings.contains(&text.as_str()))
            .map(|(method, _)| method);
        let by_prefix = || {
            PREFIXES
                .iter()
                .find(|(_, prefix)| text.starts_with(prefix))
                .map(|(method, _)| method)
        };
        exact
            .or_else(by_prefix)
            .cloned()
            .unwrap_or(Self::Other(text))
    }

    /// Every method that has a name here.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        let exact = SPELLINGS.iter().map(|(method, _)| method);
        exact.chain(PREFIXES.iter().map(|(method, _)| method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        assert_eq!(QuantMethod::parse("GPTQ"), QuantMethod::Gptq);
        assert_eq!(QuantMethod::parse("modelopt"), QuantMethod::ModelOpt);
        assert_eq!(QuantMethod::parse("modelopt_fp4"), QuantMethod::ModelOpt);
        assert_eq!(QuantMethod::parse("Intel/auto-round"), QuantMethod::AutoRound);
        assert_eq!(QuantMethod::parse("QuIP"), QuantMethod::Other("quip".into()));
    }
}
