//! Casts of plain floats: the bits of torch's `.to()`, wherever the output goes.

use anamnesis::{
    ConvertOptions, ConvertTarget, Dtype, ErrorKind, FloatCast, ParsedModel, RememberOptions,
    TargetDtype, parse,
};

use crate::common::{TARGETS, data, first_difference};

fn options(to: TargetDtype, cast: FloatCast) -> RememberOptions {
    RememberOptions::new(to).with_cast(cast).with_threads(3)
}

/// Every tensor of `want` is in `got` with the same dtype, shape and bits; NaN is NaN.
fn assert_like(want: &ParsedModel, got: &ParsedModel, context: &str) {
    assert_eq!(want.tensors().len(), got.tensors().len(), "{context}");
    for tensor in want.tensors() {
        let (name, found) = (tensor.name(), got.tensor(tensor.name()).unwrap());
        assert_eq!(
            (tensor.dtype(), tensor.shape()),
            (found.dtype(), found.shape()),
            "{context}: {name}"
        );
        let (want, got) = (tensor.bytes().unwrap(), found.bytes().unwrap());
        assert_eq!(first_difference(tensor.dtype(), &want, &got), None, "{context}: {name}");
    }
}

#[test]
fn casts_are_those_of_torch() {
    let root = crate::common::tempdir().unwrap();
    for (input, golden, cast) in [
        ("input", "expected", FloatCast::Checked),
        ("input", "expected", FloatCast::Saturating),
        ("overflow", "expected-overflow", FloatCast::Saturating),
    ] {
        let model = parse(data().join(format!("cast/{input}.safetensors"))).unwrap();
        for (to, name) in TARGETS {
            let want = parse(data().join(format!("cast/{golden}-{name}.safetensors"))).unwrap();
            let path = root.path().join(format!("{input}-{name}.safetensors"));
            let report = model.remember(&path, options(to, cast)).unwrap();
            assert_like(&want, &parse(&path).unwrap(), name);
            let changed = model.tensors().filter(|t| {
                let kept = [Dtype::I64, Dtype::Bool, Dtype::U8, to.dtype()];
                !kept.contains(&t.dtype())
            });
            assert_eq!(report.cast, changed.count(), "{name}");
            assert_eq!(report.cast + report.passthrough, model.tensors().len());
            // Files, memory, writers and single tensors have the same bytes.
            let file = std::fs::read(&path).unwrap();
            let options = options(to, cast);
            assert!(file == model.remember_to_bytes(&options).unwrap());
            let mut written = vec![];
            model.remember_to_writer(&mut written, &options).unwrap();
            assert!(file == written);
            let whole = parse(&path).unwrap();
            let check = |name: &str, bytes: &[u8]| {
                let want = whole.tensor(name).unwrap().bytes().unwrap();
                assert!(*want == *bytes, "{name}");
            };
            let mut seen = 0;
            model
                .for_each_tensor(&options, |name, _, _, bytes| {
                    check(name, bytes);
                    seen += 1;
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen, model.tensors().len());
            let conversion = model.plan(&options).unwrap();
            for tensor in whole.tensors() {
                check(tensor.name(), &conversion.tensor(tensor.name()).unwrap());
            }
        }
    }
}

/// The first value beyond the range is an error that says where it is, and nothing is written.
#[test]
fn overflow_is_an_error() {
    let model = parse(data().join("cast/overflow.safetensors")).unwrap();
    let root = crate::common::tempdir().unwrap();
    for (to, name, value) in [
        (TargetDtype::F16, "brain", "65536.0 at [1]"),
        (TargetDtype::F32, "double", "1e39 at [1]"),
        (TargetDtype::BF16, "double", "1e39 at [1]"),
    ] {
        let output = root.path().join("out.safetensors");
        let mut options = ConvertOptions::from(options(to, FloatCast::Checked));
        if to == TargetDtype::F16 {
            options.include = vec![name.to_owned()];
        }
        let error = model.convert(&output, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.tensor(), Some(name), "{error}");
        assert!(error.to_string().contains(value), "{error}");
        assert!(!output.exists());
    }
}

/// The index of the first value that overflows, in a tensor of many tiles.
#[test]
fn overflow_is_found_at_its_index() {
    use crate::common::{f32s, file, raw};
    let (rows, cols) = (600, 1000);
    let mut values = vec![0.5f32; rows * cols];
    values[401 * cols + 17] = -70000.0;
    values[599 * cols] = 70000.0;
    let bytes = file(&[raw("a.weight", "F32", &[2, 300, 1000], f32s(&values))], &[]);
    let model = anamnesis::parse_bytes(bytes).unwrap();
    let error = model
        .remember_to_bytes(options(TargetDtype::F16, FloatCast::Checked))
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`a.weight`: -70000.0 at [1, 101, 17]"), "{text}");
}

/// Values of quantized tensors become infinite in F16, as in their libraries, and the report says
/// so; saturated they become the largest. Stored infinities stay.
#[test]
fn overflow_of_quantized_values_is_reported() {
    use crate::common::{f32s, file, raw};
    let (rows, cols) = (600, 1000);
    // FP8 E4M3: 0.5 everywhere, and 448, -448 and NaN in three places.
    let mut codes = vec![0x30u8; rows * cols];
    let places = [401 * cols + 17, 599 * cols + 999, 3];
    for (place, code) in places.into_iter().zip([0x7e, 0xfe, 0x7f]) {
        codes[place] = code;
    }
    let scale = raw("a.weight_scale", "F32", &[1], f32s(&[1000.0]));
    let infinite = raw("b.weight_scale", "F32", &[1], f32s(&[f32::INFINITY]));
    let bytes = file(
        &[
            raw("a.weight", "F8_E4M3", &[rows, cols], codes),
            scale,
            raw("b.weight", "F8_E4M3", &[1, 1], vec![0x38]),
            infinite,
        ],
        &[],
    );
    let model = anamnesis::parse_bytes(bytes).unwrap();
    let root = crate::common::tempdir().unwrap();
    for (to, cast, expected, notes) in [
        (TargetDtype::F16, FloatCast::Keep, f32::INFINITY, 1),
        (TargetDtype::F16, FloatCast::Saturating, 65504.0, 1),
        (TargetDtype::BF16, FloatCast::Keep, 448_512.0, 0),
    ] {
        let path = root.path().join("out.safetensors");
        let report = model.remember(&path, options(to, cast)).unwrap();
        assert_eq!(report.notes.len(), notes, "{:?}", report.notes);
        for note in &report.notes {
            assert!(note.contains("`a.weight`: values up to 448000.0"), "{note}");
        }
        let made = parse(&path).unwrap();
        let value = |name: &str, i: usize| {
            let bytes = made.tensor(name).unwrap().bytes().unwrap();
            let bits = u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
            match to {
                TargetDtype::F16 => half::f16::from_bits(bits).to_f32(),
                _ => half::bf16::from_bits(bits).to_f32(),
            }
        };
        assert_eq!(value("a.weight", places[0]), expected);
        assert_eq!(value("a.weight", places[1]), -expected);
        assert!(value("a.weight", places[2]).is_nan());
        assert_eq!(value("b.weight", 0), f32::INFINITY);
        let ordinary = (0..rows * cols).filter(|&i| value("a.weight", i) == 500.0);
        assert_eq!(ordinary.count(), rows * cols - places.len());
        assert!(
            std::fs::read(&path).unwrap() == model.remember_to_bytes(options(to, cast)).unwrap()
        );
    }
}

/// Containers other than safetensors; vectors of GGUF are F32, as llama.cpp wants them.
#[test]
#[cfg(all(feature = "gguf", feature = "npz"))]
fn casts_into_other_containers() {
    let model = parse(data().join("cast/input.safetensors")).unwrap();
    let root = crate::common::tempdir().unwrap();
    let convert = |target, name: &str| {
        let options =
            ConvertOptions::new(target).with_run(options(TargetDtype::F16, FloatCast::Checked));
        let path = root.path().join(name);
        let mut options = options;
        options.exclude = vec!["flags".to_owned(), "bytes".to_owned(), "empty".to_owned()];
        model.convert(&path, options).unwrap();
        parse(path).unwrap()
    };
    let npz = convert(ConvertTarget::Npz, "a.npz");
    assert_eq!(npz.tensor("double").unwrap().dtype(), Dtype::F16);
    assert_eq!(npz.tensor("integers").unwrap().dtype(), Dtype::I64);
    let gguf = convert(ConvertTarget::Gguf, "a.gguf");
    assert_eq!(gguf.tensor("single").unwrap().dtype(), Dtype::F16);
    assert_eq!(gguf.tensor("brain").unwrap().dtype(), Dtype::F16);
    assert_eq!(gguf.tensor("double").unwrap().dtype(), Dtype::F32);
    // From GGUF to GGUF blocks are copied and floats are cast.
    let again = ConvertOptions::new(ConvertTarget::Gguf)
        .with_run(options(TargetDtype::F32, FloatCast::Checked));
    let path = root.path().join("b.gguf");
    let report = gguf.convert(&path, again).unwrap();
    assert_eq!(report.cast, 3, "half, brain and single");
    assert!(
        parse(path)
            .unwrap()
            .tensors()
            .all(|t| t.dtype() != Dtype::F16)
    );
}

/// Nothing is cast where something is encoded.
#[test]
#[cfg(feature = "lethe")]
fn casts_and_encoding_contradict_each_other() {
    let model = parse(data().join("cast/input.safetensors")).unwrap();
    let mut options = ConvertOptions::from(anamnesis::ForgetScheme::NF4);
    options.run.cast = FloatCast::Checked;
    let Err(error) = model.plan(options) else {
        panic!("it is planned");
    };
    assert_eq!(error.kind(), ErrorKind::Usage);
}
