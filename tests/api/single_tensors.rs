//! Functions for single tensors. `tests/schemes/slices` compares their results.

use anamnesis::{AnamnesisError, Result};

/// The published paths: a module for each container and each kind of weights, and all of it one
/// level higher too.
#[test]
fn modules_of_readers_and_kernels() {
    use anamnesis::{parse, remember};
    macro_rules! functions_are {
        ($module:path: $($name:ident)*) => {{
            use $module as module;
            $(let _ = module::$name;)*
        }};
    }
    functions_are!(remember::fp8: dequantize_fp8_to_bf16 dequantize_per_channel_fp8_to_bf16 dequantize_per_tensor_fp8_to_bf16);
    functions_are!(remember::gptq: dequantize_gptq_to_bf16);
    functions_are!(remember::awq: dequantize_awq_to_bf16);
    functions_are!(remember::bnb: dequantize_bnb4_to_bf16 dequantize_bnb4_double_quant_to_bf16 dequantize_bnb_int8_to_bf16);
    functions_are!(remember: dequantize_fp8_to_bf16 dequantize_gptq_to_bf16 dequantize_awq_to_bf16 dequantize_bnb4_double_quant_to_bf16);
    functions_are!(parse::safetensors: parse_safetensors_header);
    #[cfg(feature = "bnb")]
    functions_are!(anamnesis::lethe::bnb: encode_bnb4 encode_bnb4_compute_absmax encode_bnb4_double_quant encode_bnb_int8);
    #[cfg(feature = "gguf")]
    {
        let (tensors, none) = (<&[parse::GgufWriteTensor<'_>]>::default(), Default::default());
        let nowhere = "no such directory/model.gguf";
        parse::write_gguf::<std::hash::RandomState>(nowhere, tensors, &none).unwrap_err();
        parse::gguf_write::write_gguf::<std::hash::RandomState>(nowhere, tensors, &none)
            .unwrap_err();
        functions_are!(remember::gguf: dequantize_gguf_to_bf16);
        assert_eq!(parse::GgufType::Q8_0, parse::Dtype::Q8_0);
    }
    #[cfg(feature = "npz")]
    let _ = remember::npz::npz_to_safetensors_bytes::<std::hash::RandomState>;
    #[cfg(feature = "pth")]
    functions_are!(remember::pth: pth_to_safetensors_bytes);
    #[cfg(feature = "ollama")]
    functions_are!(parse::ollama: resolve_ollama_model);
    assert_eq!(parse::QuantScheme::Unquantized, anamnesis::QuantScheme::Unquantized);
    assert_eq!(parse::TensorRole::Scale, anamnesis::TensorRole::Scale);
}

/// Dtypes go to the `safetensors` crate and back; those that its files cannot hold are refused by
/// name.
#[test]
fn dtypes_of_the_safetensors_crate() {
    use anamnesis::Dtype;
    let theirs = safetensors::Dtype::try_from(Dtype::BF16).unwrap();
    assert_eq!(theirs, safetensors::Dtype::BF16);
    assert_eq!(Dtype::F8E4M3.to_safetensors_dtype().unwrap(), safetensors::Dtype::F8_E4M3);
    let error = safetensors::Dtype::try_from(Dtype::Q4_K).unwrap_err();
    assert!(
        matches!(error, AnamnesisError::Unsupported { .. }) && error.to_string().contains("Q4_K"),
        "{error}"
    );
}

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
    type Numbers = (f32, usize, usize, usize);
    let _ = |[codes, absmax, map, outer, levels]: [&[u8]; 5],
             (offset, n, block, nested): Numbers|
     -> Bytes {
        anamnesis::dequantize_bnb4_double_quant_to_bf16(
            codes, absmax, map, outer, levels, offset, n, block, nested,
        )
    };
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
        anamnesis::dequantize_bnb4_double_quant_to_bf16(
            &[0; 32], &[0; 2], &[0; 64], &[0; 4], &[0; 1024], 0.0, 64, 64, 256,
        ),
        anamnesis::dequantize_bnb_int8_to_bf16(&[0; 4], &[0; 4], 2, 2),
        #[cfg(feature = "gguf")]
        anamnesis::dequantize_gguf_to_bf16(&[0; 33], Dtype::Q8_0, 32),
    ] {
        assert!(matches!(result, Err(AnamnesisError::Parse { .. })), "{result:?}");
    }
}

/// Of a model in memory, stored tensors are views of the parsed bytes, and of a file views of its
/// mapping. The functions for single tensors decode them from there.
#[test]
#[cfg_attr(not(feature = "remember"), ignore = "it decodes")]
fn stored_tensors_are_decoded_without_a_copy() {
    use std::borrow::Cow;
    const NAME: &str = "layers.0.attention.wq.weight";
    let path = "tests/data/demo/model-fp8.safetensors";
    let expected = anamnesis::parse("tests/data/demo/expected-bf16.safetensors").unwrap();
    let expected = expected.tensor(NAME).unwrap().bytes().unwrap();
    let decoded = |model: &anamnesis::ParsedModel| {
        let scale = model.tensor(&format!("{NAME}_scale")).unwrap();
        let scale = scale.bytes().unwrap();
        let scale = half::bf16::from_le_bytes((*scale).try_into().unwrap());
        let codes = model.tensor(NAME).unwrap().bytes().unwrap();
        anamnesis::dequantize_per_tensor_fp8_to_bf16(&codes, scale.to_f32()).unwrap()
    };
    let file = std::fs::read(path).unwrap();
    let begin = file.as_ptr();
    let model = anamnesis::parse_bytes(file).unwrap();
    for tensor in model.tensors() {
        let Cow::Borrowed(bytes) = tensor.bytes().unwrap() else {
            panic!("{} is a copy", tensor.name());
        };
        let offset = usize::try_from(tensor.offset().unwrap()).unwrap();
        assert_eq!(bytes.as_ptr(), begin.wrapping_add(offset));
    }
    assert!(decoded(&model) == *expected);
    let mapped = anamnesis::parse(path).unwrap();
    for tensor in mapped.tensors() {
        let [Cow::Borrowed(bytes), Cow::Borrowed(again)] =
            [(); 2].map(|()| tensor.bytes().unwrap())
        else {
            panic!("{} is a copy", tensor.name());
        };
        assert_eq!(bytes.as_ptr(), again.as_ptr());
    }
    assert!(decoded(&mapped) == *expected);
}
