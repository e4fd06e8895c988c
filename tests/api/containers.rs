//! GGUF, NPZ and PyTorch files.

use std::path::Path;

use anamnesis::Result;

use super::{is_copy, is_value, travels};

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
    assert_eq!((infos.len(), infos.is_empty()), (gguf.len(), gguf.is_empty()));
    let file = std::fs::read(FILE).unwrap();
    for (info, GgufTensor { name, shape, dtype, data, .. }) in infos.iter().zip(gguf.tensors()) {
        assert_eq!((&*info.name, &*info.shape, info.dtype), (name, shape, dtype));
        assert_eq!(data, &file[info.data_offset as usize..][..info.byte_len.unwrap() as usize]);
    }
    let mut cursor = std::io::Cursor::new(file);
    let front = parse_gguf_front_matter_from_reader(&mut cursor).unwrap();
    let (_, _): (u32, u32) = (front.version, front.alignment);
    assert_eq!((&*front.tensor_infos, &front.metadata), (infos, metadata));
    cursor.set_position(0);
    let inspected: GgufInspectInfo = inspect_gguf_from_reader(cursor).unwrap();
    assert_eq!((&inspected, &inspected), (&gguf.inspect(), &front.inspect()));
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
    let _: (Option<String>, usize, u64, usize) =
        (architecture, tensor_count, total_bytes, unknown_size_tensors);
    // Each path names the same type.
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
    let tensor = GgufWriteTensor { name: "x", shape: &[1], dtype: GgufType::F32, data: &data };
    let mut written = std::io::Cursor::new(Vec::new());
    write_gguf_to_writer(&mut written, &[tensor], metadata).unwrap();
    let dir = crate::common::tempdir().unwrap();
    write_gguf(dir.path().join("x.gguf"), &[tensor], metadata).unwrap();
    assert_eq!(std::fs::read(dir.path().join("x.gguf")).unwrap(), written.into_inner());
    let bytes = gguf
        .remember_to_bytes(anamnesis::TargetDtype::BF16)
        .unwrap();
    gguf.remember(dir.path().join("x.safetensors"), anamnesis::TargetDtype::BF16)
        .unwrap();
    assert_eq!(std::fs::read(dir.path().join("x.safetensors")).unwrap(), bytes);
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
    assert_eq!(parse_npz_with_limits(FILE, &ParseLimits::default()).unwrap(), arrays);
    let info: NpzInspectInfo = inspect_npz(Path::new(FILE)).unwrap();
    let mut file = std::fs::File::open(FILE).unwrap();
    assert_eq!(inspect_npz_from_reader(&mut file).unwrap(), info);
    for NpzTensorInfo { name, dtype, shape, byte_len, .. } in &info.tensors {
        let NpzTensor { dtype: theirs, shape: dims, data, .. } = &arrays[name];
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
    let dir = crate::common::tempdir().unwrap();
    npz_to_safetensors(&one, dir.path().join("x")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x")).unwrap(),
        npz_to_safetensors_bytes(&one).unwrap()
    );
    let _: fn(std::path::PathBuf) -> Result<anamnesis::parse::npz::NpzInspectInfo> =
        |path| inspect_npz(path);
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
    for (PthTensorInfo { name, shape, dtype, byte_len, .. }, tensor) in infos.iter().zip(&tensors) {
        assert_eq!(
            (name, shape, *dtype, *byte_len),
            (&tensor.name, &tensor.shape, tensor.dtype, tensor.data.len())
        );
    }
    let dir = crate::common::tempdir().unwrap();
    pth_to_safetensors(&tensors, dir.path().join("x")).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("x")).unwrap(),
        pth_to_safetensors_bytes(&tensors).unwrap()
    );
    pth.to_safetensors(dir.path().join("y")).unwrap();
    assert_eq!(std::fs::read(dir.path().join("y")).unwrap(), pth.to_safetensors_bytes().unwrap());
    let made = PthTensor::new("x".to_owned(), vec![1], PthDtype::U8, vec![1].into());
    pth_to_safetensors_bytes(&[made]).unwrap();
    let _: fn(std::path::PathBuf) -> Result<anamnesis::parse::pth::ParsedPth> =
        |path| parse_pth(path);
}
