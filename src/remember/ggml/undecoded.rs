//! Types of GGUF files that are not decoded: their names, and which library writes them.

use std::borrow::Cow;

/// Types of ik_llama.cpp with which it multiplies. From its `ggml/include/ggml.h`, as the row of
/// [`UNDECIDABLE`].
const RUN_TIME: &[(u32, &str)] = &[
    (97, "Q8_0_X4"),
    (98, "Q8_1_X4"),
    (99, "Q8_2_X4"),
    (136, "Q8_K64"),
    (147, "Q8_K16"),
    (148, "Q8_K32"),
    (149, "Q8_KR8"),
    (150, "Q8_K128"),
];

/// A type of ik_llama.cpp whose codes it writes with a sign on CPUs without AVX-512
/// (`repack_q16_k`), and reads without one everywhere (`dequantize_row_q8_k_r16`). Nothing in a
/// file tells which they are.
const UNDECIDABLE: &[(u32, &str)] = &[(397, "Q8_K_R16")];

/// What type number `id` is called in messages, and why it is not decoded. No
/// [`Dtype`](crate::Dtype) has this number.
pub(super) fn name_and_reason(id: u32) -> (Cow<'static, str>, &'static str) {
    let name_in = |types: &[(u32, &'static str)]| {
        let found = types.iter().find(|(number, _)| *number == id);
        found.map(|(_, name)| Cow::from(format!("GGUF type {id}, {name} of ik_llama.cpp")))
    };
    if let Some(name) = name_in(RUN_TIME) {
        return (name, "it is for activations, and no weights are stored in it");
    }
    if let Some(name) = name_in(UNDECIDABLE) {
        let reason = "its codes are others on a CPU with AVX-512 than on one without, and nothing tells which these are; take the model in another type";
        return (name, reason);
    }
    let reason = match id {
        2 | 3 | 6..=8 => {
            "llama.cpp had two orders of these blocks in March 2023, and nothing tells which this is; quantize the model anew"
        }
        4 => {
            "the type was removed from ggml (Q4_2); Ollama wrote its first MXFP4 under this number"
        }
        5 | 31..=33 | 37 | 38 => {
            "the type was removed from ggml; models in it have to be quantized anew"
        }
        36 => "the type was removed from ggml; BitNet's I2_S is written under this number",
        97..=99 | 133..=158 | 202..=399 => "a type of ik_llama.cpp",
        _ => "no type of ggml has this number",
    };
    (Cow::from(format!("GGUF type {id}")), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn undecoded_types_have_no_dtype() {
        for (id, name) in RUN_TIME.iter().chain(UNDECIDABLE) {
            assert_eq!(Dtype::from_ggml(*id), Dtype::UnknownGgml(*id), "{name}");
            assert!(name_and_reason(*id).0.contains(name));
        }
        assert_eq!(name_and_reason(159).0, "GGUF type 159");
        for id in [100, 132, 159] {
            assert_eq!(name_and_reason(id).1, "no type of ggml has this number");
        }
    }
}
