//! The API that other crates compile against: every name with its path, signature, fields and derives. What is missing
//! here does not compile, so that nothing is lost by accident. What items do is tested where they are.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::type_complexity)] // signatures are spelt out

mod common;
#[path = "api/encoders.rs"]
mod encoders;

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, Result};

const SAFETENSORS: &str = "tests/data/demo/model-fp8.safetensors";

/// What results have to be, to go from one thread to another.
fn travels<T: Send + 'static>() {}
fn is_shared<T: Send + Sync + 'static>() {}
fn is_value<T: Debug + Clone + PartialEq>() {}
fn is_copy<T: Debug + Copy + Eq + Hash + Display>() {}

#[test]
fn errors() {
    let parse = AnamnesisError::Parse {
        reason: "x".to_owned(),
    };
    let unsupported = AnamnesisError::Unsupported {
        format: "x".to_owned(),
        detail: "y".to_owned(),
    };
    let limit = AnamnesisError::LimitExceeded {
        limit: "x",
        message: "y".to_owned(),
    };
    let global = AnamnesisError::DisallowedGlobal {
        module: "x".to_owned(),
        name: "y".to_owned(),
    };
    let io: AnamnesisError = std::io::Error::other("x").into();
    let texts = [
        (&parse, "parse error: x"),
        (&unsupported, "unsupported format `x`: y"),
        (&limit, "limit exceeded (x): y"),
        (
            &global,
            "disallowed pickle global `x.y` (potential code execution)",
        ),
        (
            &AnamnesisError::Cancelled,
            "operation cancelled by the caller",
        ),
        (&io, "x"),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
        // No pattern leaves a field out.
        match error {
            AnamnesisError::Parse { reason } => assert_eq!(reason, "x"),
            AnamnesisError::Unsupported { format, detail } => {
                assert_eq!((&**format, &**detail), ("x", "y"))
            }
            AnamnesisError::LimitExceeded { limit, message } => {
                assert_eq!((*limit, &**message), ("x", "y"))
            }
            AnamnesisError::DisallowedGlobal { module, name } => {
                assert_eq!((&**module, &**name), ("x", "y"))
            }
            AnamnesisError::Io(error) => assert_eq!(error.to_string(), "x"),
            _ => {}
        }
    }
    let _: fn(anamnesis::error::AnamnesisError) -> anamnesis::AnamnesisError = |e| e;
    let _: fn(&AnamnesisError) -> anamnesis::ErrorKind = AnamnesisError::kind;
    let _: anamnesis::error::Result<()> = Ok(());
    travels::<Result<()>>();
    is_shared::<AnamnesisError>();
}

#[test]
fn models() {
    use anamnesis::{InspectInfo, ParseLimits, ParsedModel, TargetDtype, parse, parse_with_limits};
    is_shared::<ParsedModel>();
    is_copy::<TargetDtype>();
    let _: fn(&PathBuf) -> Result<ParsedModel> = |path| parse(path);
    let _: fn(&Path, &ParseLimits) -> Result<anamnesis::model::ParsedModel> =
        |path, l| parse_with_limits(path, l);
    let model = parse(SAFETENSORS).unwrap();
    let bytes: Vec<u8> = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    let dir = tempfile::tempdir().unwrap();
    model
        .remember(dir.path().join("out.safetensors"), TargetDtype::BF16)
        .unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("out.safetensors")).unwrap(),
        bytes
    );
    let InspectInfo {
        format,
        tensor_count,
        current_size,
        dequantized_size,
        output_dtype,
        ..
    } = model.inspect();
    assert_eq!(
        (tensor_count, output_dtype.to_string()),
        (model.tensors().len(), "BF16".to_owned())
    );
    assert_eq!(format.to_string(), "Per-tensor FP8 (E4M3)");
    let (_, _): (u64, u64) = (current_size, dequantized_size);
    let _: anamnesis::inspect::InspectInfo = model.inspect();
    let _: [usize; 6] = {
        let InspectInfo {
            quantized,
            scales,
            passthrough,
            zeropoints,
            group_indices,
            quant_maps,
            ..
        } = model.inspect();
        [
            quantized,
            scales,
            passthrough,
            zeropoints,
            group_indices,
            quant_maps,
        ]
    };
    let (_, _): (Vec<anamnesis::Dtype>, usize) =
        (model.inspect().scale_dtypes, model.inspect().nested_scales);
    let _: u64 = model.inspect().lethe_took();
    assert_eq!("f16".parse::<TargetDtype>().unwrap(), TargetDtype::F16);
    let _: [TargetDtype; 3] = [TargetDtype::BF16, TargetDtype::F32, TargetDtype::F16];
    assert_eq!(anamnesis::format_bytes(1536), "1.5 KB");
    assert!(matches!(
        parse("tests/data/no such file"),
        Err(AnamnesisError::Io(_))
    ));
    #[cfg(feature = "ollama")]
    let _: fn(&str) -> Result<PathBuf> = anamnesis::resolve_ollama_model;
}

#[test]
fn limits() {
    use anamnesis::ParseLimits;
    is_value::<ParseLimits>();
    const LIMITS: ParseLimits = ParseLimits::unbounded()
        .with_max_single_alloc(1)
        .with_max_total_bytes(2)
        .with_max_item_count(3)
        .with_max_decompression_ratio(4);
    let _: anamnesis::limits::ParseLimits = ParseLimits::default();
    let axes = [
        LIMITS.max_single_alloc_bytes(),
        LIMITS.max_total_bytes(),
        LIMITS.max_item_count(),
    ];
    assert_eq!((axes, LIMITS.max_decompression_ratio()), ([1, 2, 3], 4));
    assert_eq!(ParseLimits::default().max_total_bytes(), u64::MAX);
}

#[test]
fn safetensors_headers() {
    use anamnesis::{
        AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, Dtype, GptqCompanions, GptqConfig,
        InspectInfo, ParseLimits, QuantScheme, SafetensorsHeader, TensorEntry, TensorRole,
        parse_safetensors_header, parse_safetensors_header_from_reader,
        parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
    };
    travels::<Result<SafetensorsHeader>>();
    is_copy::<Dtype>();
    is_copy::<QuantScheme>();
    let file = std::fs::File::open(SAFETENSORS).unwrap();
    let header = parse_safetensors_header_from_reader(file).unwrap();
    let mut reader = std::fs::File::open(SAFETENSORS).unwrap();
    parse_safetensors_header_from_reader(&mut reader).unwrap();
    let (bytes, limits) = (std::fs::read(SAFETENSORS).unwrap(), ParseLimits::default());
    parse_safetensors_header_from_reader_with_limits(&bytes[..], &limits).unwrap();
    parse_safetensors_header_with_limits(&bytes, &limits).unwrap();
    assert_eq!(
        parse_safetensors_header(&bytes).unwrap().tensors,
        header.tensors
    );
    let info = InspectInfo::from(&header);
    assert_eq!(info.tensor_count, header.tensors.len());
    assert!(header.scheme != QuantScheme::Unquantized);
    let weight = header.quantized_tensors().next().unwrap();
    assert_eq!(
        header.find_scale_for(&weight.name).unwrap().role,
        TensorRole::Scale
    );
    assert_eq!(
        weight.byte_len(),
        weight.num_elements() * weight.dtype.byte_size()
    );
    let counts = [
        header.quantized_count(),
        header.scale_count(),
        header.passthrough_count(),
    ];
    assert_eq!(counts.iter().sum::<usize>(), header.tensors.len());
    let none = [
        header.zeropoint_count(),
        header.group_index_count(),
        header.quant_map_count(),
    ];
    assert_eq!((none, header.nested_scale_count()), ([0; 3], 0));
    // Every field can be moved out.
    let gptq: Option<GptqConfig> = header.gptq_config;
    let awq: Option<AwqConfig> = header.awq_config;
    let bnb: Option<BnbConfig> = header.bnb_config;
    assert!(gptq.is_none() && awq.is_none() && bnb.is_none());
    let _: (u64, Option<std::collections::HashMap<String, String>>) =
        (header.header_size as u64, header.metadata);
    for TensorEntry {
        name,
        dtype,
        shape,
        data_offsets,
        ..
    } in header.tensors
    {
        let _: (String, String, Vec<usize>, u64) =
            (name, dtype.to_string(), shape, data_offsets.0 as u64);
    }
    let _: fn(GptqCompanions<'_>) -> Option<&TensorEntry> =
        |c| c.g_idx.or(Some(c.scales)).or(Some(c.qzeros));
    let _: fn(AwqCompanions<'_>) -> [&TensorEntry; 2] = |c| [c.scales, c.qzeros];
    let _: fn(Bnb4Companions<'_>) -> [Option<&TensorEntry>; 5] = |c| {
        [
            Some(c.absmax),
            Some(c.quant_map),
            c.nested_absmax,
            c.nested_quant_map,
            c.quant_state,
        ]
    };
    let _: fn(&[u8]) -> Result<anamnesis::parse::safetensors::SafetensorsHeader> =
        parse_safetensors_header;
    #[allow(unused_imports)]
    use TensorRole::{
        GroupIndex, NestedScale, Passthrough, QuantMap, QuantState, Quantized, Scale, ZeroPoint,
    };
}

/// What a header says of layers, from their shapes alone.
#[test]
fn companions() {
    use anamnesis::{TensorRole, parse_safetensors_header};
    use common::verdict::tensors;
    use common::{file, raw};
    let gptq = "X.qweight I32 32,64; X.scales F16 2,64; X.qzeros I32 2,16; X.g_idx I32 128";
    let header = parse_safetensors_header(&file(&tensors(gptq), &[("gptq_bits", "8")])).unwrap();
    if cfg!(feature = "gptq") {
        let config = header.gptq_config.unwrap();
        assert_eq!((config.bits, config.group_size), (8, 64));
        let found = header.find_gptq_companions("X.qweight").unwrap();
        assert_eq!(
            (&*found.scales.name, &*found.qzeros.name),
            ("X.scales", "X.qzeros")
        );
        assert_eq!(found.g_idx.unwrap().role, TensorRole::GroupIndex);
        assert_eq!(
            header.zeropoint_tensors().count() + header.group_index_tensors().count(),
            2
        );
    }
    let awq = "X.qweight I32 128,8; X.scales F16 2,64; X.qzeros I32 2,8";
    let header = parse_safetensors_header(&file(&tensors(awq), &[])).unwrap();
    if cfg!(feature = "awq") {
        let config = header.awq_config.unwrap();
        assert_eq!((config.bits, config.group_size), (4, 64));
        assert!(header.find_awq_companions("X.qweight").is_some());
    }
    let state = br#"{"blocksize":64,"shape":[10,15]}"#.to_vec();
    let mut bnb = tensors(
        "X.weight U8 75,1; X.weight.absmax U8 3; X.weight.quant_map F32 16; X.weight.nested_absmax F32 1; \
         X.weight.nested_quant_map F32 256; Y.weight I8 2,3; Y.SCB F32 2",
    );
    bnb.push(raw(
        "X.weight.quant_state.bitsandbytes__nf4",
        "U8",
        &[state.len()],
        state,
    ));
    let header = parse_safetensors_header(&file(&bnb, &[])).unwrap();
    if cfg!(feature = "bnb") {
        let config = header.bnb_config.unwrap();
        assert_eq!((config.block_size, config.double_quant), (64, true));
        let found = header.find_bnb4_companions("X.weight").unwrap();
        assert!(
            found.nested_absmax.is_some()
                && found.nested_quant_map.is_some()
                && found.quant_state.is_some()
        );
        assert_eq!(header.find_bnb_int8_scb("Y.weight").unwrap().name, "Y.SCB");
        assert_eq!(
            (
                header.quant_map_tensors().count(),
                header.nested_scale_tensors().count()
            ),
            (2, 1)
        );
    }
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    use std::collections::HashMap;

    use anamnesis::{
        GgufFrontMatter, GgufInspectInfo, GgufMetadataArray, GgufMetadataValue, GgufTensor,
        GgufTensorInfo, GgufType, GgufWriteTensor, ParseLimits, ParsedGguf,
        inspect_gguf_from_reader, parse_gguf, parse_gguf_front_matter_from_reader,
        parse_gguf_with_limits, write_gguf, write_gguf_to_writer,
    };
    const FILE: &str = "tests/data/demo/model-q4_k.gguf";
    travels::<Result<GgufFrontMatter>>();
    travels::<Result<ParsedGguf>>();
    is_value::<GgufMetadataValue>();
    is_copy::<GgufType>();
    let gguf: ParsedGguf = parse_gguf(Path::new(FILE)).unwrap();
    parse_gguf_with_limits(FILE, &ParseLimits::default()).unwrap();
    let (_, _): (u32, u32) = (gguf.version(), gguf.alignment());
    let metadata: &HashMap<String, GgufMetadataValue> = gguf.metadata();
    assert!(
        metadata
            .values()
            .any(|value| matches!(value, GgufMetadataValue::String(_)))
    );
    let infos: &[GgufTensorInfo] = gguf.tensor_info();
    assert_eq!(
        (infos.len(), infos.is_empty()),
        (gguf.len(), gguf.is_empty())
    );
    let file = std::fs::read(FILE).unwrap();
    for (
        info,
        GgufTensor {
            name,
            shape,
            dtype,
            data,
            ..
        },
    ) in infos.iter().zip(gguf.tensors())
    {
        assert_eq!(
            (&*info.name, &*info.shape, info.dtype),
            (name, shape, dtype)
        );
        assert_eq!(
            data,
            &file[info.data_offset as usize..][..info.byte_len.unwrap() as usize]
        );
    }
    let mut cursor = std::io::Cursor::new(file);
    let front = parse_gguf_front_matter_from_reader(&mut cursor).unwrap();
    let (_, _): (u32, u32) = (front.version, front.alignment);
    assert_eq!((&*front.tensor_infos, &front.metadata), (infos, metadata));
    cursor.set_position(0);
    let inspected: GgufInspectInfo = inspect_gguf_from_reader(cursor).unwrap();
    assert_eq!(
        (&inspected, &inspected),
        (&gguf.inspect(), &front.inspect())
    );
    let block = infos.iter().find(|info| info.dtype.is_quantized()).unwrap();
    assert_eq!(
        block.dtype.byte_size_for_n_elements(256).unwrap(),
        block.dtype.type_size().unwrap() as u64
    );
    assert_eq!(
        gguf.dequantize_tensor(block).unwrap().len(),
        block.shape.iter().product::<usize>() * 2
    );
    let GgufInspectInfo {
        version: _,
        architecture,
        tensor_count,
        total_bytes,
        unknown_size_tensors,
        ..
    } = inspected;
    let _: (Option<String>, usize, u64, usize) = (
        architecture,
        tensor_count,
        total_bytes,
        unknown_size_tensors,
    );
    // The same type under each of its paths.
    let value: anamnesis::parse::gguf::GgufMetadataValue =
        GgufMetadataValue::Array(Box::new(array()));
    fn array() -> GgufMetadataArray {
        GgufMetadataArray::U32(vec![1, 2])
    }
    assert_eq!(value.as_array().unwrap().as_u32_slice().unwrap(), [1, 2]);
    let shown = |value: &GgufMetadataValue| match value {
        GgufMetadataValue::String(s) => s.clone(),
        GgufMetadataValue::Bool(x) => x.to_string(),
        GgufMetadataValue::U8(x) => x.to_string(),
        GgufMetadataValue::I8(x) => x.to_string(),
        GgufMetadataValue::U16(x) => x.to_string(),
        GgufMetadataValue::I16(x) => x.to_string(),
        GgufMetadataValue::U32(x) => x.to_string(),
        GgufMetadataValue::I32(x) => x.to_string(),
        GgufMetadataValue::U64(x) => x.to_string(),
        GgufMetadataValue::I64(x) => x.to_string(),
        GgufMetadataValue::F32(x) => x.to_string(),
        GgufMetadataValue::F64(x) => x.to_string(),
        GgufMetadataValue::Array(_) => String::new(),
        _ => panic!("a new type"),
    };
    assert_eq!(shown(&GgufMetadataValue::U32(7)), "7");
    let data = 1f32.to_le_bytes();
    let tensor = GgufWriteTensor {
        name: "x",
        shape: &[1],
        dtype: GgufType::F32,
        data: &data,
    };
    let mut written = std::io::Cursor::new(Vec::new());
    write_gguf_to_writer(&mut written, &[tensor], metadata).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_gguf(dir.path().join("x.gguf"), &[tensor], metadata).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x.gguf")).unwrap(),
        written.into_inner()
    );
    let bytes = gguf
        .remember_to_bytes(anamnesis::TargetDtype::BF16)
        .unwrap();
    gguf.remember(
        dir.path().join("x.safetensors"),
        anamnesis::TargetDtype::BF16,
    )
    .unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x.safetensors")).unwrap(),
        bytes
    );
}

#[cfg(feature = "npz")]
#[test]
fn npz() {
    use std::collections::HashMap;

    use anamnesis::{
        NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, ParseLimits, inspect_npz,
        inspect_npz_from_reader, npz_to_safetensors, npz_to_safetensors_bytes, parse_npz,
        parse_npz_with_limits,
    };
    const FILE: &str = "tests/data/demo/arrays.npz";
    travels::<Result<NpzInspectInfo>>();
    is_copy::<NpzDtype>();
    let arrays: HashMap<String, NpzTensor> = parse_npz(Path::new(FILE)).unwrap();
    assert_eq!(
        parse_npz_with_limits(FILE, &ParseLimits::default()).unwrap(),
        arrays
    );
    let info: NpzInspectInfo = inspect_npz(Path::new(FILE)).unwrap();
    let mut file = std::fs::File::open(FILE).unwrap();
    assert_eq!(inspect_npz_from_reader(&mut file).unwrap(), info);
    for NpzTensorInfo {
        name,
        dtype,
        shape,
        byte_len,
        ..
    } in &info.tensors
    {
        let NpzTensor {
            dtype: theirs,
            shape: dims,
            data,
            ..
        } = &arrays[name];
        assert_eq!((*dtype, shape, *byte_len), (*theirs, dims, data.len()));
    }
    let (_, _): (u64, Vec<NpzDtype>) = (info.total_bytes, info.dtypes);
    let names = |dtype: &NpzDtype| match dtype {
        other @ (NpzDtype::Bool | NpzDtype::U8 | NpzDtype::I8 | NpzDtype::U16 | NpzDtype::I16) => {
            other.to_string()
        }
        other @ (NpzDtype::U32 | NpzDtype::I32 | NpzDtype::U64 | NpzDtype::I64) => {
            other.to_string()
        }
        other @ (NpzDtype::F16 | NpzDtype::BF16 | NpzDtype::F32 | NpzDtype::F64) => {
            other.to_string()
        }
        _ => String::new(),
    };
    assert_eq!(
        (names(&NpzDtype::Bool), names(&NpzDtype::F32)),
        ("BOOL".to_owned(), "F32".to_owned())
    );
    let made = NpzTensor::new("x".to_owned(), vec![1], NpzDtype::U8, vec![1]);
    let one = HashMap::from([(made.name.clone(), made)]);
    let dir = tempfile::tempdir().unwrap();
    npz_to_safetensors(&one, dir.path().join("x")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x")).unwrap(),
        npz_to_safetensors_bytes(&one).unwrap()
    );
    let _: fn(PathBuf) -> Result<anamnesis::parse::npz::NpzInspectInfo> = |path| inspect_npz(path);
}

#[cfg(feature = "pth")]
#[test]
fn pth() {
    use anamnesis::{
        ParseLimits, ParsedPth, PthDtype, PthFrontMatter, PthInspectInfo, PthTensor, PthTensorInfo,
        inspect_pth_from_reader, parse_pth, parse_pth_front_matter_from_reader,
        parse_pth_with_limits, pth_to_safetensors, pth_to_safetensors_bytes,
    };
    const FILE: &str = "tests/data/demo/checkpoint.pth";
    travels::<Result<PthFrontMatter>>();
    travels::<Result<ParsedPth>>();
    is_copy::<PthDtype>();
    let pth: ParsedPth = parse_pth(Path::new(FILE)).unwrap();
    parse_pth_with_limits(FILE, &ParseLimits::default()).unwrap();
    let infos: Vec<PthTensorInfo> = pth.tensor_info();
    let mut file = std::fs::File::open(FILE).unwrap();
    let front = parse_pth_front_matter_from_reader(&mut file).unwrap();
    assert_eq!((&front.tensors, front.big_endian), (&infos, false));
    let inspected: PthInspectInfo = inspect_pth_from_reader(file).unwrap();
    assert_eq!(inspected, pth.inspect());
    assert_eq!((inspected.tensor_count, pth.is_empty()), (pth.len(), false));
    let _: (u64, Vec<PthDtype>) = (inspected.total_bytes, inspected.dtypes);
    let tensors: Vec<PthTensor<'_>> = pth.tensors().unwrap();
    for (
        PthTensorInfo {
            name,
            shape,
            dtype,
            byte_len,
            ..
        },
        tensor,
    ) in infos.iter().zip(&tensors)
    {
        assert_eq!(
            (name, shape, *dtype, *byte_len),
            (&tensor.name, &tensor.shape, tensor.dtype, tensor.data.len())
        );
    }
    let dir = tempfile::tempdir().unwrap();
    pth_to_safetensors(&tensors, dir.path().join("x")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x")).unwrap(),
        pth_to_safetensors_bytes(&tensors).unwrap()
    );
    pth.to_safetensors(dir.path().join("y")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("y")).unwrap(),
        pth.to_safetensors_bytes().unwrap()
    );
    let made = PthTensor::new("x".to_owned(), vec![1], PthDtype::U8, vec![1].into());
    pth_to_safetensors_bytes(&[made]).unwrap();
    let _: fn(PathBuf) -> Result<anamnesis::parse::pth::ParsedPth> = |path| parse_pth(path);
}

/// Functions for single tensors. What they give is compared in `slices.rs`.
#[test]
fn single_tensors() {
    use anamnesis::{Dtype, remember};
    type Bytes = Result<Vec<u8>>;
    let _: fn(&[u8], &[u8], usize, usize, Dtype) -> Bytes = remember::dequantize_fp8_to_bf16;
    let _: fn(&[u8], f32) -> Bytes = anamnesis::dequantize_per_tensor_fp8_to_bf16;
    let _: fn(&[u8], &[u8], usize, usize, Dtype) -> Bytes =
        anamnesis::dequantize_per_channel_fp8_to_bf16;
    #[cfg(feature = "gptq")]
    let _: fn(&[u8], &[u8], &[u8], Option<&[u8]>, usize, usize, usize, u8, Dtype) -> Bytes =
        anamnesis::dequantize_gptq_to_bf16;
    #[cfg(feature = "awq")]
    let _: fn(&[u8], &[u8], &[u8], usize, usize, usize, u8, Dtype) -> Bytes =
        anamnesis::dequantize_awq_to_bf16;
    #[cfg(feature = "bnb")]
    let _: fn(&[u8], &[u8], &[u8], usize, usize) -> Bytes = anamnesis::dequantize_bnb4_to_bf16;
    #[cfg(feature = "bnb")]
    let _: fn(&[u8], &[u8], usize, usize) -> Bytes = anamnesis::dequantize_bnb_int8_to_bf16;
    #[cfg(feature = "gguf")]
    let _: fn(&[u8], anamnesis::GgufType, usize) -> Bytes = anamnesis::dequantize_gguf_to_bf16;
    #[cfg(feature = "gguf")]
    anamnesis::dequantize_gguf_blocks_to_bf16(&[0; 34], Dtype::Q8_0, 32, |_: &[u8]| Ok(()))
        .unwrap();
    // Sizes that do not fit, and sizes that overflow.
    for result in [
        anamnesis::dequantize_fp8_to_bf16(&[0; 6], &[0; 8], 2, 3, Dtype::F32),
        anamnesis::dequantize_fp8_to_bf16(&[0; 6], &[0; 4], usize::MAX, 3, Dtype::F32),
        anamnesis::dequantize_per_channel_fp8_to_bf16(&[0; 6], &[0; 4], 2, 3, Dtype::F32),
        #[cfg(feature = "gptq")]
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
        #[cfg(feature = "awq")]
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
        #[cfg(feature = "bnb")]
        anamnesis::dequantize_bnb4_to_bf16(&[0; 4], &[0; 4], &[0; 64], 9, 64),
        #[cfg(feature = "bnb")]
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
