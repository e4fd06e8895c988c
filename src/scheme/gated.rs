//! Schemes that depend on a cargo feature: their identities, which every build has. A build without the feature still
//! recognises such a scheme, and refuses its weights with the feature's name rather than copying codes as weights.

#[cfg(not(all(feature = "nvfp4", feature = "gptq", feature = "awq", feature = "bnb")))]
pub(super) use self::disabled::*;
use super::seam::NamePattern::{Contains, Ends, Is};
use super::seam::{Identity, Index, Sibling, TensorRole};
use crate::config::QuantMethod;
use crate::containers::model::Tensor;

pub(super) static NVFP4: Identity = Identity {
    name: "NVFP4",
    methods: &[
        QuantMethod::ModelOpt,
        QuantMethod::CompressedTensors,
        QuantMethod::AutoRound,
    ],
    codes: &["_packed"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_global_scale"), TensorRole::Scale),
        (Ends("pre_quant_scale"), TensorRole::Scale),
        (Ends("svdquant_lora_a"), TensorRole::LowRank),
        (Ends("svdquant_lora_b"), TensorRole::LowRank),
    ],
    // A weight can be complete without these, so a shard that lacks them is checked against the
    // model's index.
    optional: &[
        Sibling::OfModule("pre_quant_scale"),
        Sibling::OfModule("svdquant_lora_a"),
        Sibling::OfModule("svdquant_lora_b"),
        Sibling::OfModule("weight_quantizer._svdquant_lora_a"),
    ],
    activations: &["input_global_scale"],
    markers: &[],
    sidecars: &[Is("hf_quant_config.json")],
    container: None,
};

pub(super) static GPTQ: Identity = Identity {
    name: "GPTQ",
    methods: &[QuantMethod::Gptq, QuantMethod::AutoRound],
    codes: &[],
    companions: &[
        (Ends(".qzeros"), TensorRole::ZeroPoint),
        (Ends(".g_idx"), TensorRole::GroupIndex),
    ],
    optional: &[Sibling::OfModule("qzeros"), Sibling::OfModule("g_idx")],
    activations: &[],
    markers: &[],
    sidecars: &[
        Is("quantize_config.json"),
        // Written by AutoRound.
        Is("quantization_config.json"),
    ],
    container: None,
};

pub(super) static AWQ: Identity = Identity {
    name: "AWQ",
    methods: &[QuantMethod::Awq, QuantMethod::AutoRound],
    codes: &[],
    companions: &[
        (Ends(".qzeros"), TensorRole::ZeroPoint),
        (Ends(".scaled_zeros"), TensorRole::ZeroPoint),
    ],
    optional: &[
        Sibling::OfModule("qzeros"),
        Sibling::OfModule("scaled_zeros"),
    ],
    activations: &[],
    markers: &[],
    sidecars: &[Is("quant_config.json")],
    container: None,
};

pub(super) static BNB_4BIT: Identity = Identity {
    name: "BitsAndBytes 4-bit",
    methods: &[QuantMethod::BitsAndBytes],
    codes: &[],
    companions: &[
        (Ends(".weight.absmax"), TensorRole::Scale),
        (Ends(".quant_map"), TensorRole::QuantMap),
        (Ends(".nested_absmax"), TensorRole::NestedScale),
        (Ends(".nested_quant_map"), TensorRole::QuantMap),
        (
            Contains(".quant_state.bitsandbytes__"),
            TensorRole::QuantState,
        ),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

pub(super) static BNB_INT8: Identity = Identity {
    name: "BitsAndBytes INT8",
    methods: &[QuantMethod::BitsAndBytes],
    codes: &[],
    companions: &[(Ends(".SCB"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

/// Whether `t` may be packed codes of BitsAndBytes without their companions: a column `[n, 1]` in a model whose
/// config has `load_in_4bit`. `bnb_4bit_quant_storage` allows any dtype for the bytes, so the dtype tells nothing.
pub(super) fn may_be_bnb_4bit(t: &Tensor<'_>, all: &Index<'_>) -> bool {
    matches!(t.shape(), &[n, 1] if n > 1) && all.config.flag("load_in_4bit") == Some(true)
}

/// Schemes whose features this build leaves out.
#[cfg(not(all(feature = "nvfp4", feature = "gptq", feature = "awq", feature = "bnb")))]
mod disabled {
    use crate::Result;
    use crate::containers::model::Tensor;
    use crate::scheme::foreign::{Signature, kind, refuse, signature};
    use crate::scheme::seam::{Group, Identity, Index, QuantScheme, Scheme};

    /// A scheme that this build leaves out. It claims nothing and refuses what it recognises.
    pub(in crate::scheme) struct Disabled {
        identity: &'static Identity,
        signatures: &'static [Signature],
        may_be_codes: fn(&Tensor<'_>, &Index<'_>) -> bool,
    }

    impl Disabled {
        #[allow(dead_code)]
        const fn new(identity: &'static Identity, signatures: &'static [Signature]) -> Self {
            Self {
                identity,
                signatures,
                may_be_codes: |_, _| false,
            }
        }
    }

    impl Scheme for Disabled {
        fn identity(&self) -> &'static Identity {
            self.identity
        }

        fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
            kind(self.signatures, t, all)
        }

        fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
            refuse(self.signatures, t, all)
        }

        fn may_be_codes(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
            (self.may_be_codes)(t, all)
        }
    }

    /// `signature`, refused with `remedy`.
    #[allow(dead_code)]
    const fn needs(remedy: &'static str, signature: Signature) -> Signature {
        Signature {
            remedy,
            ..signature
        }
    }

    #[cfg(not(feature = "nvfp4"))]
    pub(in crate::scheme) static NVFP4_OFF: Disabled = {
        use crate::scheme::foreign::BYTES;
        const REMEDY: &str = "needs the feature `nvfp4`, which this build leaves out";
        Disabled::new(
            &super::NVFP4,
            &[
                // `signature` strips an empty end, so that the companion's name follows the whole
                // name of the weight.
                needs(REMEDY, signature("NVFP4", "", BYTES, &["_weight_scale_2"])),
                needs(REMEDY, signature("NVFP4", "", BYTES, &["_scale_2"])),
                needs(
                    REMEDY,
                    signature("NVFP4", ".weight_packed", BYTES, &[".weight_global_scale"]),
                ),
            ],
        )
    };

    #[cfg(not(feature = "gptq"))]
    pub(in crate::scheme) static GPTQ_OFF: Disabled = {
        use crate::scheme::foreign::WORDS;
        const REMEDY: &str = "needs the feature `gptq`, which this build leaves out";
        Disabled::new(
            &super::GPTQ,
            &[
                // With an index it is GPTQ for sure. Without one the name alone does not tell GPTQ
                // from AWQ.
                needs(REMEDY, signature("GPTQ", ".qweight", &[], &[".g_idx"])),
                needs(REMEDY, signature("GPTQ Marlin", ".B", WORDS, &[".s"])),
                #[cfg(feature = "awq")]
                needs(REMEDY, signature("GPTQ", ".qweight", &[], &[])),
                #[cfg(not(feature = "awq"))]
                needs(
                    "needs the features `gptq` or `awq`, which this build leaves out",
                    signature("GPTQ or AWQ", ".qweight", &[], &[]),
                ),
            ],
        )
    };

    /// Registered after GPTQ, with which AWQ shares the name `qweight`: what GPTQ leaves is AWQ's.
    #[cfg(not(feature = "awq"))]
    pub(in crate::scheme) static AWQ_OFF: Disabled = Disabled::new(
        &super::AWQ,
        &[needs(
            "needs the feature `awq`, which this build leaves out",
            signature("AWQ", ".qweight", &[], &[]),
        )],
    );

    #[cfg(not(feature = "bnb"))]
    pub(in crate::scheme) static BNB_4BIT_OFF: Disabled = Disabled {
        identity: &super::BNB_4BIT,
        signatures: &[needs(
            "needs the feature `bnb`, which this build leaves out",
            signature("BitsAndBytes 4-bit", "", &[], &[".absmax", ".quant_map"]),
        )],
        may_be_codes: super::may_be_bnb_4bit,
    };

    #[cfg(not(feature = "bnb"))]
    pub(in crate::scheme) static BNB_INT8_OFF: Disabled = {
        use crate::scheme::foreign::INT8;
        Disabled::new(
            &super::BNB_INT8,
            &[needs(
                "needs the feature `bnb`, which this build leaves out",
                signature("BitsAndBytes INT8", ".weight", INT8, &[".SCB"]),
            )],
        )
    };
}
