//! Functions for single tensors. `tests/schemes/slices` compares their results.

use anamnesis::{AnamnesisError, Result};

/// Signatures of the functions for single tensors, and sizes that they refuse.
#[test]
fn single_tensors() {
    use anamnesis::{Dtype, remember};
    type Bytes = Result<Vec<u8>>;
    let _: fn(&[u8], &[u8], usize, usize, Dtype) -> Bytes = remember::dequantize_fp8_to_bf16;
    let _: fn(&[u8], f32) -> Bytes = anamnesis::dequantize_per_tensor_fp8_to_bf16;
    let _: fn(&[u8], &[u8], usize, usize, Dtype) -> Bytes =
        anamnesis::dequantize_per_channel_fp8_to_bf16;
    let _: fn(&[u8], &[u8], &[u8], Option<&[u8]>, usize, usize, usize, u8, Dtype) -> Bytes =
        anamnesis::dequantize_gptq_to_bf16;
    let _: fn(&[u8], &[u8], &[u8], usize, usize, usize, u8, Dtype) -> Bytes =
        anamnesis::dequantize_awq_to_bf16;
    let _: fn(&[u8], &[u8], &[u8], usize, usize) -> Bytes = anamnesis::dequantize_bnb4_to_bf16;
    let _: fn(&[u8], &[u8], usize, usize) -> Bytes = anamnesis::dequantize_bnb_int8_to_bf16;
    #[cfg(feature = "gguf")]
    let _: fn(&[u8], anamnesis::GgufType, usize) -> Bytes = anamnesis::dequantize_gguf_to_bf16;
    #[cfg(feature = "gguf")]
    anamnesis::dequantize_gguf_blocks_to_bf16(&[0; 34], Dtype::Q8_0, 32, |_: &[u8]| Ok(()))
        .unwrap();
    // Lengths that contradict the dimensions, and dimensions whose product overflows.
    for result in [
        anamnesis::dequantize_fp8_to_bf16(&[0; 6], &[0; 8], 2, 3, Dtype::F32),
        anamnesis::dequantize_fp8_to_bf16(&[0; 6], &[0; 4], usize::MAX, 3, Dtype::F32),
        anamnesis::dequantize_per_channel_fp8_to_bf16(&[0; 6], &[0; 4], 2, 3, Dtype::F32),
        anamnesis::dequantize_gptq_to_bf16(
            &[0; 4],
            &[0; 4],
            &[0; 4],
            None,
            usize::MAX,
            8,
            1,
            8,
            Dtype::F16,
        ),
        anamnesis::dequantize_awq_to_bf16(
            &[0; 4],
            &[0; 4],
            &[0; 4],
            8,
            usize::MAX,
            0,
            4,
            Dtype::F16,
        ),
        anamnesis::dequantize_bnb4_to_bf16(&[0; 4], &[0; 4], &[0; 64], 9, 64),
        anamnesis::dequantize_bnb_int8_to_bf16(&[0; 4], &[0; 4], 2, 2),
        #[cfg(feature = "gguf")]
        anamnesis::dequantize_gguf_to_bf16(&[0; 33], Dtype::Q8_0, 32),
    ] {
        assert!(
            matches!(result, Err(AnamnesisError::Parse { .. })),
            "{result:?}"
        );
    }
}
