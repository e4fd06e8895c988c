//! Errors, models and limits.

use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, Result};

use super::{SAFETENSORS, is_copy, is_shared, is_value, travels};

#[test]
fn errors() {
    let parse = AnamnesisError::Parse { reason: "x".to_owned() };
    let unsupported =
        AnamnesisError::Unsupported { format: "x".to_owned(), detail: "y".to_owned() };
    let limit = AnamnesisError::LimitExceeded { limit: "x", message: "y".to_owned() };
    let global = AnamnesisError::DisallowedGlobal { module: "x".to_owned(), name: "y".to_owned() };
    let io: AnamnesisError = std::io::Error::other("x").into();
    let texts = [
        (&parse, "parse error: x"),
        (&unsupported, "unsupported format `x`: y"),
        (&limit, "limit exceeded (x): y"),
        (&global, "disallowed pickle global `x.y` (potential code execution)"),
        (&AnamnesisError::Cancelled, "operation cancelled by the caller"),
        (&io, "x"),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
        // Each pattern names every field.
        match error {
            AnamnesisError::Parse { reason } => assert_eq!(reason, "x"),
            AnamnesisError::Unsupported { format, detail } => {
                assert_eq!((&**format, &**detail), ("x", "y"));
            }
            AnamnesisError::LimitExceeded { limit, message } => {
                assert_eq!((*limit, &**message), ("x", "y"));
            }
            AnamnesisError::DisallowedGlobal { module, name } => {
                assert_eq!((&**module, &**name), ("x", "y"));
            }
            AnamnesisError::Io(error) => assert_eq!(error.to_string(), "x"),
            _ => {}
        }
    }
    let _: fn(anamnesis::error::AnamnesisError) -> anamnesis::AnamnesisError = |e| e;
    let _: fn(&AnamnesisError) -> anamnesis::ErrorKind = AnamnesisError::kind;
    let _: fn(&AnamnesisError) -> Option<&str> = AnamnesisError::tensor;
    let _: anamnesis::error::Result<()> = Ok(());
    travels::<Result<()>>();
    is_shared::<AnamnesisError>();
}

#[test]
#[cfg_attr(not(feature = "remember"), ignore = "it decodes")]
fn models() {
    use anamnesis::{InspectInfo, ParseLimits, ParsedModel, TargetDtype, parse, parse_with_limits};
    is_shared::<ParsedModel>();
    is_copy::<TargetDtype>();
    let _: fn(&PathBuf) -> Result<ParsedModel> = |path| parse(path);
    let _: fn(&Path, &ParseLimits) -> Result<anamnesis::model::ParsedModel> =
        |path, l| parse_with_limits(path, l);
    let model = parse(SAFETENSORS).unwrap();
    let bytes: Vec<u8> = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    let dir = crate::common::tempdir().unwrap();
    model
        .remember(dir.path().join("out.safetensors"), TargetDtype::BF16)
        .unwrap();
    assert_eq!(std::fs::read(dir.path().join("out.safetensors")).unwrap(), bytes);
    let InspectInfo { format, tensor_count, current_size, dequantized_size, output_dtype, .. } =
        model.inspect();
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
        [quantized, scales, passthrough, zeropoints, group_indices, quant_maps]
    };
    let (_, _): (Vec<anamnesis::Dtype>, usize) =
        (model.inspect().scale_dtypes, model.inspect().nested_scales);
    let _: u64 = model.inspect().lethe_took();
    assert_eq!("f16".parse::<TargetDtype>().unwrap(), TargetDtype::F16);
    let _: [TargetDtype; 3] = [TargetDtype::BF16, TargetDtype::F32, TargetDtype::F16];
    assert_eq!(anamnesis::format_bytes(1536), "1.5 KB");
    assert!(matches!(parse("tests/data/no such file"), Err(AnamnesisError::Io(_))));
    #[cfg(feature = "ollama")]
    let _: fn(&str) -> Result<PathBuf> = anamnesis::resolve_ollama_model;
}

#[test]
fn streams_and_formats() {
    use std::fs::File;

    use anamnesis::{
        Container, ParseLimits, ParsedModel, detect_format, detect_format_from_reader,
        parse_from_reader, parse_from_reader_with_limits,
    };
    is_copy::<Container>();
    let _: fn(&Path) -> Result<Container> = |path| detect_format(path);
    let _: fn(&mut File) -> Result<Container> = |file| detect_format_from_reader(file);
    let _: fn(File) -> Result<ParsedModel> = parse_from_reader;
    let _: fn(File, &ParseLimits) -> Result<ParsedModel> = parse_from_reader_with_limits;
}

#[test]
fn limits() {
    use anamnesis::ParseLimits;
    is_value::<ParseLimits>();
    const LIMITS: ParseLimits = ParseLimits::unbounded()
        .with_max_single_alloc(1)
        .with_max_total_bytes(2)
        .with_max_item_count(3)
        .with_max_decompression_ratio(4)
        .with_max_decompressed_bytes(5);
    assert_eq!(LIMITS.max_decompressed_bytes(), 5);
    assert_eq!(ParseLimits::default(), ParseLimits::unbounded());
    let _: anamnesis::limits::ParseLimits = ParseLimits::default();
    let axes = [LIMITS.max_single_alloc_bytes(), LIMITS.max_total_bytes(), LIMITS.max_item_count()];
    assert_eq!((axes, LIMITS.max_decompression_ratio()), ([1, 2, 3], 4));
    assert_eq!(ParseLimits::default().max_total_bytes(), u64::MAX);
}

/// What embedders load models with: a plan, its tensors by name, and where stored tensors lie.
#[test]
#[cfg_attr(not(feature = "remember"), ignore = "it decodes")]
fn single_tensors() {
    use anamnesis::{
        Conversion, ConvertOptions, OutputTensor, Panel, RememberOptions, Report, TargetDtype,
        TensorRole, parse,
    };
    fn is_shared_while_borrowed<T: Send + Sync>(_: &T) {}
    let model = parse(SAFETENSORS).unwrap();
    let conversion: Conversion<'_> = model.plan(TargetDtype::BF16).unwrap();
    is_shared_while_borrowed(&conversion);
    is_value::<OutputTensor<'static>>();
    let bytes: u64 = conversion.outputs().map(|tensor| tensor.byte_len).sum();
    assert_eq!(conversion.outputs().len(), 1);
    assert_eq!(
        bytes,
        conversion.report().output_bytes - header_len(&conversion.to_bytes().unwrap())
    );
    let OutputTensor { name, shape, dtype, byte_len, .. } = conversion.outputs().next().unwrap();
    let (_, _, _): (&str, &[usize], anamnesis::Dtype) = (name, shape, dtype);
    let whole: Vec<u8> = conversion.tensor(name).unwrap();
    let mut again = vec![0; usize::try_from(byte_len).unwrap()];
    let _: () = conversion.decode_into(name, &mut again).unwrap();
    assert_eq!(whole, again);
    let rows: Vec<u8> = conversion.rows(name, 0..1).unwrap();
    let _: () = conversion
        .decode_rows_into(name, 0..1, &mut again[..rows.len()])
        .unwrap();
    let _: Option<OutputTensor<'_>> = conversion.output("no such tensor");

    let options = RememberOptions::new(TargetDtype::BF16).no_replace();
    let _: RememberOptions = options.clone().with_force(false);
    assert_eq!(options.replace, anamnesis::convert::Replace::Nothing);
    let _: anamnesis::FloatCast = options.cast;
    let _: RememberOptions = options.clone().with_cast(anamnesis::FloatCast::Checked);
    let options: ConvertOptions = (&options).into();
    let all = |_: &str, _: &[usize], _: anamnesis::Dtype, _: &[u8]| Ok(());
    let _: Report = model.for_each_tensor(TargetDtype::F32, all).unwrap();
    let _: Report = model.for_each_tensor(options.run.clone(), all).unwrap();
    let _: Report = model.for_each_tensor(&options.run, all).unwrap();
    let _: Report = model.for_each_tensor(options.clone(), all).unwrap();
    let panel = |_: Panel<'_>| Ok(());
    let _: Report = model.for_each_panel(&options.run, panel).unwrap();
    let _: Report = model.for_each_panel(&options, panel).unwrap();
    let _: Report = model.remember_to_writer(Vec::new(), &options).unwrap();
    let _: Report = model
        .remember_to_writer(Vec::new(), options.no_replace())
        .unwrap();

    let file = std::fs::read(SAFETENSORS).unwrap();
    let mut roles = Vec::new();
    for tensor in model.tensors() {
        let found = model.tensor(tensor.name()).unwrap();
        assert_eq!(found.offset(), tensor.offset());
        assert_eq!(tensor.file(), Some(Path::new(SAFETENSORS)));
        let at = usize::try_from(tensor.offset().unwrap()).unwrap();
        let bytes = tensor.bytes().unwrap();
        assert_eq!(file[at..at + bytes.len()], *bytes);
        roles.push(tensor.role());
    }
    roles.sort_unstable();
    assert_eq!(roles, [TensorRole::Quantized, TensorRole::Scale]);
    let in_memory = anamnesis::parse_bytes(file).unwrap();
    for tensor in in_memory.tensors() {
        let same = model.tensor(tensor.name()).unwrap();
        assert_eq!((tensor.file(), tensor.offset()), (None, same.offset()));
    }
    assert!(model.tensor("no such tensor").is_none());
}

fn header_len(safetensors: &[u8]) -> u64 {
    8 + u64::from_le_bytes(safetensors[..8].try_into().unwrap())
}

/// Of a model in several files, each tensor tells its own. A compressed member has no offset in its
/// file.
#[test]
fn places_of_tensors() {
    let path = Path::new("tests/data/fp8_dirs/mistral_consolidated_sharded/model");
    let model = anamnesis::parse(path).unwrap();
    let mut files = std::collections::BTreeSet::new();
    for tensor in model.tensors() {
        let (file, at) = (tensor.file().unwrap(), tensor.offset().unwrap());
        assert_eq!(file.parent(), Some(path));
        let stored = std::fs::read(file).unwrap();
        let bytes = tensor.bytes().unwrap();
        assert_eq!(stored[usize::try_from(at).unwrap()..][..bytes.len()], *bytes);
        files.insert(file.to_owned());
    }
    assert!(files.len() > 1, "{files:?}");
    #[cfg(feature = "npz")]
    {
        let path = Path::new("tests/data/npz/mixed.npz");
        let model = anamnesis::parse(path).unwrap();
        let stored = std::fs::read(path).unwrap();
        let mut compressed = 0;
        for tensor in model.tensors() {
            assert_eq!(tensor.file(), Some(path));
            match tensor.offset() {
                None => compressed += 1,
                Some(at) => {
                    let bytes = tensor.bytes().unwrap();
                    assert_eq!(stored[usize::try_from(at).unwrap()..][..bytes.len()], *bytes);
                }
            }
        }
        assert!(0 < compressed && compressed < model.tensors().len());
    }
}

/// Without the feature `remember` nothing is decoded, and what is stored as floats is copied.
#[cfg(not(feature = "remember"))]
#[test]
fn decoding_needs_its_feature() {
    use anamnesis::{TargetDtype, parse};
    let is_refused = |error: anamnesis::AnamnesisError| {
        error.to_string().contains("needs the feature `remember`")
    };
    let mut refused = 0;
    let directories = crate::common::case_directories();
    let files = directories
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    for path in files {
        let Ok(model) = parse(&path) else { continue };
        if model.inspect().quantized == 0 {
            continue;
        }
        for target in [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32] {
            let made = model.remember_to_bytes(target);
            let error = made.expect_err(&path.display().to_string());
            refused += usize::from(is_refused(error));
        }
    }
    assert!(refused > 500, "{refused}");
    let single = anamnesis::dequantize_per_tensor_fp8_to_bf16(&[0x38], 1.0);
    assert!(is_refused(single.unwrap_err()));
    let dir = crate::common::tempdir().unwrap();
    let floats = parse("tests/data/demo/expected-bf16.safetensors").unwrap();
    let out = dir.path().join("out.safetensors");
    floats.remember(&out, TargetDtype::BF16).unwrap();
    let copy = parse(&out).unwrap();
    for tensor in floats.tensors() {
        let copied = copy.tensor(tensor.name()).unwrap();
        assert_eq!(copied.bytes().unwrap(), tensor.bytes().unwrap());
    }
}

/// Edits of metadata: options, and what they report.
#[test]
fn edits() {
    use anamnesis::edit::{EditWritten, KeyChange, KeyValue};
    use anamnesis::{EditOptions, EditReport, edit};
    let _: fn(&Path, &EditOptions) -> Result<EditReport> = |path, options| edit(path, options);
    let mut options = EditOptions::to("never.safetensors")
        .with_set("format=pt")
        .with_set("old=x")
        .with_unset("none")
        .with_rename("a", "b");
    let _: (&Option<PathBuf>, &Option<PathBuf>) = (&options.output, &options.backup);
    assert_eq!((options.force, options.chat_template, options.tokenizer_pre), (false, None, None));
    let _: (anamnesis::CancelToken, anamnesis::ParseLimits) = (options.cancel, options.limits);
    options = EditOptions::in_place().with_set("author=me");
    options.dry_run = true;
    let report = edit(SAFETENSORS, &options).unwrap();
    assert_eq!((report.input.as_path(), &report.input), (Path::new(SAFETENSORS), &report.output));
    assert!(report.output_bytes > 65_538 && report.notes.is_empty());
    assert_eq!(report.written, EditWritten::File);
    is_value::<KeyChange>();
    let KeyChange { key, renamed_from, before, after, .. } = &report.changes[0];
    assert_eq!((&**key, renamed_from, before), ("author", &None, &None));
    let KeyValue { kind, value, .. } = after.as_ref().unwrap();
    assert_eq!((&**kind, value), ("string", &serde_json::json!("me")));
    options = options.with_unset("gone");
    let error = edit(SAFETENSORS, &options).unwrap_err();
    assert_eq!(error.kind(), anamnesis::ErrorKind::Usage);
}
