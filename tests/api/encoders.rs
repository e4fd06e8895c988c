//! The API's encoders, and its modules.

/// The encoders of BitsAndBytes.
#[cfg(feature = "bnb")]
#[test]
fn bitsandbytes_encoders() {
    use std::path::PathBuf;

    use anamnesis::Result;
    use anamnesis::{
        BnbNf4WriteStats, BnbWriteInput, FP4_CODEBOOK, NF4_BLOCK_SIZE, NF4_CODEBOOK,
        classify_inputs, encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4,
        encode_bnb4_compute_absmax, encode_bnb4_double_quant, is_eligible_for_nf4, lethe,
        write_bnb_nf4_safetensors, write_bnb_nf4_safetensors_bytes,
    };
    type Bytes = Result<Vec<u8>>;
    type Two = Result<(Vec<u8>, Vec<u8>)>;
    let _: fn(&[u8], &[u8], &[u8], usize, usize) -> Bytes = encode_bnb4;
    let _: fn(&[u8], &[u8], usize, usize) -> Two = encode_bnb4_compute_absmax;
    let _: fn(&[u8], &[u8], &[u8], &[u8], &[u8], f32, usize, usize, usize) -> Bytes =
        encode_bnb4_double_quant;
    let _: fn(&[u8], &[u8], usize, usize) -> Bytes = encode_bnb_int8;
    let _: fn(&[u8], usize, usize) -> Two = encode_bnb_int8_compute_scb;
    let _: fn(&[usize]) -> bool = is_eligible_for_nf4;
    let _: fn(&[BnbWriteInput<'_>]) -> BnbNf4WriteStats = classify_inputs;
    let _: fn(&[BnbWriteInput<'_>], PathBuf) -> Result<()> =
        |inputs, path| write_bnb_nf4_safetensors(inputs, path);
    let _: fn(&[BnbWriteInput<'_>]) -> Bytes = write_bnb_nf4_safetensors_bytes;
    const SIZES: ([f32; 16], [f32; 16], usize) = (NF4_CODEBOOK, FP4_CODEBOOK, NF4_BLOCK_SIZE);
    assert!(SIZES.2 == 64 && SIZES.1[8].to_bits() == (-0f32).to_bits());

    // The functions return codes, then scales; encoding with these scales gives the same codes.
    let bf16 = [0x3f80u16, 0xc000].map(u16::to_le_bytes).concat(); // 1, -2
    let row = bf16.repeat(32);
    let map: Vec<u8> = NF4_CODEBOOK.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (codes, absmax) = encode_bnb4_compute_absmax(&row, &map, 64, 64).unwrap();
    assert_eq!((codes.len(), &absmax[..]), (32, &2f32.to_le_bytes()[..]));
    assert_eq!(encode_bnb4(&row, &absmax, &map, 64, 64).unwrap(), codes);
    let (codes, scb) = encode_bnb_int8_compute_scb(&row, 1, 64).unwrap();
    assert_eq!((codes.len(), &scb[..]), (64, &2f32.to_le_bytes()[..]));
    assert_eq!(encode_bnb_int8(&row, &scb, 1, 64).unwrap(), codes);
    for codebook in [NF4_CODEBOOK, FP4_CODEBOOK] {
        let decode = anamnesis::dequantize_bnb4_to_bf16;
        lethe::round_trip::assert_bnb4_decode_encode_round_trip(
            &codebook,
            &[1.0, 0.05],
            64,
            decode,
            encode_bnb4,
        )
        .unwrap();
    }
    let decode = anamnesis::dequantize_bnb_int8_to_bf16;
    lethe::round_trip::assert_bnb_int8_decode_encode_round_trip(decode, encode_bnb_int8).unwrap();

    let inputs = [
        BnbWriteInput { name: "a.weight", shape: &[1, 64], bf16_data: &row },
        BnbWriteInput { name: "a.bias", shape: &[64], bf16_data: &row },
    ];
    let stats = classify_inputs(&inputs);
    assert_eq!((stats.quantized, stats.passthrough), (1, 1));
    assert!(is_eligible_for_nf4(inputs[0].shape) && !is_eligible_for_nf4(inputs[1].shape));
    let dir = crate::common::tempdir().unwrap();
    write_bnb_nf4_safetensors(&inputs, dir.path().join("x")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x")).unwrap(),
        write_bnb_nf4_safetensors_bytes(&inputs).unwrap()
    );
}

/// Modules export the items that the crate root exports.
#[test]
fn module_paths() {
    #[allow(unused_imports)]
    use anamnesis::remember::{dequantize_bnb_int8_to_bf16, dequantize_bnb4_to_bf16};
    #[allow(unused_imports)]
    use anamnesis::{
        error::{AnamnesisError, Result},
        inspect::{InspectInfo, format_bytes},
        lethe::round_trip::{
            assert_bnb_int8_decode_encode_round_trip, assert_bnb4_decode_encode_round_trip,
        },
        limits::ParseLimits,
        model::{ParsedModel, TargetDtype, parse, parse_with_limits},
        parse::safetensors::{Dtype, QuantScheme, TensorRole, parse_safetensors_header},
        parse::{
            AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
            SafetensorsHeader, TensorEntry, parse_safetensors_header_from_reader,
            parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
        },
        remember::{
            dequantize_fp8_to_bf16, dequantize_per_channel_fp8_to_bf16,
            dequantize_per_tensor_fp8_to_bf16,
        },
    };
    #[cfg(feature = "bnb")]
    #[allow(unused_imports)]
    use anamnesis::{
        lethe::bnb as _,
        lethe::{
            BnbNf4WriteStats, BnbWriteInput, FP4_CODEBOOK, NF4_BLOCK_SIZE, NF4_CODEBOOK,
            classify_inputs, encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4,
            encode_bnb4_compute_absmax, encode_bnb4_double_quant, is_eligible_for_nf4,
            write_bnb_nf4_safetensors, write_bnb_nf4_safetensors_bytes,
        },
    };
    #[cfg(feature = "gguf")]
    #[allow(unused_imports)]
    use anamnesis::{
        parse::gguf::GgufType,
        parse::{
            GgufInspectInfo, GgufMetadataArray, GgufMetadataValue, GgufTensor, GgufTensorInfo,
            ParsedGguf, inspect_gguf_from_reader, parse_gguf, parse_gguf_front_matter_from_reader,
            parse_gguf_with_limits,
        },
        remember::{dequantize_gguf_blocks_to_bf16, dequantize_gguf_to_bf16},
    };
    #[cfg(feature = "npz")]
    #[allow(unused_imports)]
    use anamnesis::{
        parse::{
            NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, inspect_npz, parse_npz,
            parse_npz_with_limits,
        },
        remember::{npz_to_safetensors, npz_to_safetensors_bytes},
    };
    #[cfg(feature = "pth")]
    #[allow(unused_imports)]
    use anamnesis::{
        parse::{
            ParsedPth, PthDtype, PthInspectInfo, PthTensor, PthTensorInfo, parse_pth,
            parse_pth_with_limits,
        },
        remember::{pth_to_safetensors, pth_to_safetensors_bytes},
    };
    let _ = anamnesis::remember::dequantize_awq_to_bf16;
    let _ = anamnesis::remember::dequantize_gptq_to_bf16;
}

/// A scheme to encode to has the name of the scheme that is decoded.
#[cfg(feature = "lethe")]
#[test]
fn schemes_have_the_names_of_those_that_are_decoded() {
    use anamnesis::lethe::QuantScheme as To;
    use anamnesis::{QuantScheme as From, parse};

    let place = crate::common::tempdir().unwrap();
    let (plain, encoded) = (place.path().join("plain"), place.path().join("encoded"));
    let weight = crate::common::forget::bf16s(&vec![0.5; 256 * 256]);
    let tensor = crate::common::raw("a.up_proj.weight", "BF16", &[256, 256], weight);
    std::fs::write(&plain, crate::common::file(&[tensor], &[])).unwrap();
    let is_fp8 = |found: &From| found.to_string().contains("FP8");
    let pairs: [(To, &dyn Fn(&From) -> bool); 8] = [
        (To::FineGrainedFp8, &|found| matches!(found, From::FineGrainedFp8 { .. })),
        (To::PerChannelFp8, &|found| matches!(found, From::PerChannelFp8 { .. })),
        (To::PerTensorFp8, &|found| is_fp8(found) && matches!(found, From::PerTensorFp8 { .. })),
        (To::Gptq, &|found| *found == From::Gptq),
        (To::Awq, &|found| *found == From::Awq),
        (To::Bnb4, &|found| *found == From::Bnb4),
        (To::BnbInt8, &|found| *found == From::BnbInt8),
        (To::Nvfp4, &|found| matches!(found, From::Nvfp4 { .. })),
    ];
    for (to, is_found) in pairs {
        let _ = std::fs::remove_file(&encoded);
        parse(&plain).unwrap().forget(&encoded, to).unwrap();
        let found = parse(&encoded).unwrap().inspect().format;
        assert!(is_found(&found), "{to:?}: {found}");
    }
}
