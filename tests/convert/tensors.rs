//! Single tensors of a planned conversion, and rows of them: the bytes of the whole output, without
//! the rest of the work.

pub(super) mod costs;

use anamnesis::{
    Conversion, ConvertOptions, ErrorKind, ParsedModel, RememberOptions, TargetDtype, parse,
    parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::directory::seven_layers;
use crate::common::{Random, Raw, TARGETS, data, effort, f32s, file, raw};

/// Ranges of `count` rows: at the ends, in the middle, single, empty, all.
fn ranges(count: usize) -> Vec<std::ops::Range<usize>> {
    let (third, half) = (count / 3, count / 2);
    vec![
        0..count,
        0..count.min(1),
        count - count.min(1)..count,
        third..count - third,
        half..half,
        count..count,
    ]
}

/// Compares every tensor, and rows of it, with those of a whole output.
fn check(model: &ParsedModel, context: &str) {
    // In the gate each type with one thread and with three, otherwise with either.
    let count = effort([1, 2, 2]);
    for (at, (target, _)) in TARGETS.into_iter().enumerate() {
        for threads in [1, 3].into_iter().cycle().skip(at).take(count) {
            let run = RememberOptions::new(target).with_threads(threads);
            let mut options = ConvertOptions::from(run);
            options.single_file = true;
            let conversion = model.plan(options).unwrap();
            let bytes = conversion.to_bytes().unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(conversion.outputs().len(), file.len(), "{context}");
            // In the opposite order, so that nothing rests on what came before.
            for tensor in conversion.outputs().collect::<Vec<_>>().into_iter().rev() {
                let name = tensor.name;
                let want = file.tensor(name).unwrap();
                assert_eq!(conversion.output(name), Some(tensor));
                assert_eq!(tensor.shape, want.shape(), "{context}: {name}");
                assert_eq!(tensor.dtype.to_string(), want.dtype().to_string());
                assert_eq!(tensor.byte_len, want.data().len() as u64);
                let mut into = [0xaa].repeat(want.data().len());
                conversion.decode_into(name, &mut into).unwrap();
                assert!(into == want.data(), "{context} {target}: {name}");
                assert!(
                    conversion.tensor(name).unwrap() == want.data(),
                    "{context} {target}: {name} again"
                );
                check_rows(&conversion, name, want.shape(), want.data());
            }
            assert!(conversion.to_bytes().unwrap() == bytes, "{context}: after single tensors");
        }
    }
}

fn check_rows(conversion: &Conversion<'_>, name: &str, shape: &[usize], want: &[u8]) {
    let Some(&count) = shape.first() else {
        return;
    };
    let row = want.len() / count.max(1);
    for (at, rows) in ranges(count).into_iter().enumerate() {
        let want = &want[rows.start * row..rows.end * row];
        // In the gate both ways, otherwise either.
        let ways = effort([[at % 2 == 0, at % 2 == 1], [true; 2], [true; 2]]);
        if ways[0] {
            let have = conversion.rows(name, rows.clone()).unwrap();
            assert!(have == want, "{name}: rows {rows:?}");
        }
        if !ways[1] {
            continue;
        }
        let mut into = [0xaa].repeat(want.len());
        conversion
            .decode_rows_into(name, rows.clone(), &mut into)
            .unwrap();
        assert!(into == want, "{name}: rows {rows:?}, in place");
    }
}

/// Tensors of many tiles in several schemes, a flat row, an empty one and a scalar.
fn many_tiles() -> Vec<Raw> {
    let mut random = Random(11);
    let (n, k) = (700usize, 2048usize);
    let blocks = [n.div_ceil(128), k.div_ceil(128)];
    vec![
        raw("a.weight", "F8_E4M3", &[n, k], random.bytes(n * k)),
        raw("a.weight_scale_inv", "F32", &blocks, f32s(&random.floats(blocks[0] * blocks[1]))),
        raw("c.weight", "F8_E5M2", &[3, 140_001], random.bytes(420_003)),
        raw("c.weight_scale", "F32", &[], f32s(&[0.5])),
        raw("bytes", "U8", &[3], vec![1, 2, 3]),
        raw("scalar", "F32", &[], f32s(&[2.0])),
        raw("empty", "F32", &[0, 7], vec![]),
        raw("plain", "F32", &[n, 3, 100], random.bytes(n * 300 * 4)),
    ]
}

#[test]
fn tensors_of_a_file() {
    check(&parse_bytes(file(&many_tiles(), &[])).unwrap(), "tiles");
    let (k, n) = (2048, 448);
    let mut random = Random(5);
    let gptq = [
        raw("X.qweight", "I32", &[k / 8, n], random.bytes(k / 8 * n * 4)),
        raw("X.qzeros", "I32", &[k / 64, n / 8], random.bytes(k / 64 * n / 8 * 4)),
        raw("X.scales", "F32", &[k / 64, n], f32s(&random.floats(k / 64 * n))),
    ];
    let gptq = file(&gptq, &[("gptq_bits", "4")]);
    check(&parse_bytes(gptq).unwrap(), "transposed");
}

#[test]
fn tensors_of_every_container() {
    let demo = [
        ("model-fp8.safetensors", true),
        ("model-q4_k.gguf", cfg!(feature = "gguf")),
        ("arrays.npz", cfg!(feature = "npz")),
        ("checkpoint.pth", cfg!(feature = "pth")),
    ];
    for (name, _) in demo.iter().filter(|(_, built)| *built) {
        check(&parse(data().join("demo").join(name)).unwrap(), name);
    }
    check(&parse(data().join("quark/tiny_llama_mixed/model")).unwrap(), "quark");
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let model = parse(&input).unwrap();
    check(&model, "shards");
    // A plan of many files has the same tensors.
    let conversion = model.plan(TargetDtype::BF16).unwrap();
    assert!(conversion.is_directory());
    let bytes = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    for (name, want) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        assert!(conversion.tensor(&name).unwrap() == want.data(), "{name}");
    }
}

/// Threads share one plan, and may ask for the same tensor.
#[test]
fn many_threads_at_once() {
    let paths = [("demo/model-fp8.safetensors", true), ("demo/arrays.npz", cfg!(feature = "npz"))];
    for (path, _) in paths.iter().filter(|(_, built)| *built) {
        let model = parse(data().join(path)).unwrap();
        let conversion = &model.plan(TargetDtype::F32).unwrap();
        let bytes = conversion.to_bytes().unwrap();
        let file = &SafeTensors::deserialize(&bytes).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for (name, want) in file.tensors() {
                        assert!(conversion.tensor(&name).unwrap() == want.data(), "{name}");
                    }
                });
            }
        });
    }
}

#[test]
fn patterns_hold_for_single_tensors() {
    let model = parse_bytes(file(&many_tiles(), &[])).unwrap();
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.exclude = vec!["plain".to_owned()];
    let conversion = model.plan(options).unwrap();
    let mut names: Vec<_> = conversion.outputs().map(|tensor| tensor.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.weight", "bytes", "c.weight", "empty", "scalar"]);
    assert!(conversion.output("plain").is_none());
}

#[test]
fn requests_that_make_no_sense() {
    let mut tensors = many_tiles();
    tensors.push(raw("half", "F4", &[4, 3], vec![0; 6]));
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    let conversion = model.plan(TargetDtype::BF16).unwrap();
    let missing = conversion.tensor("a.weight_scale_inv").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Parse);
    assert_eq!(missing.tensor(), Some("a.weight_scale_inv"));

    let mut out = vec![7; 5];
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = 2..1;
    let refused = [
        (conversion.decode_into("bytes", &mut out), "5 bytes"),
        (conversion.decode_rows_into("bytes", 0..2, &mut out), "5 bytes"),
        (conversion.rows("bytes", 0..4).map(drop), "0..4 of 3"),
        (conversion.rows("bytes", 9..usize::MAX).map(drop), "of 3"),
        (conversion.rows("bytes", reversed).map(drop), "2..1"),
        (conversion.rows("empty", 0..1).map(drop), "0..1 of 0"),
        (conversion.rows("scalar", 0..1).map(drop), "no dimensions"),
        (conversion.rows("half", 0..1).map(drop), "whole number"),
    ];
    for (result, what) in refused {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.tensor().is_some(), "{error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    assert_eq!(out, [7; 5], "a refused request writes nothing");
    assert_eq!(conversion.tensor("half").unwrap(), [0; 6]);
}

/// Blocks of ggml lie along the last dimension, so rows of a matrix are whole blocks and values of
/// a vector are not.
#[test]
fn rows_of_blocks() {
    let model = parse(data().join("demo/model-q4_k.gguf")).unwrap();
    let conversion = model.plan(anamnesis::ConvertTarget::Gguf).unwrap();
    let stored = |name: &str| model.tensor(name).unwrap().bytes().unwrap();
    for tensor in conversion.outputs() {
        let want = stored(tensor.name);
        assert!(conversion.tensor(tensor.name).unwrap() == *want);
        check_rows(&conversion, tensor.name, tensor.shape, &want);
    }
    assert!(conversion.outputs().any(|t| t.dtype.is_ggml_block()));
}

#[test]
fn encoded_tensors_are_refused_by_name() {
    let model = parse_bytes(file(&many_tiles(), &[])).unwrap();
    let mut options = ConvertOptions::from(anamnesis::ForgetScheme::NF4);
    options.include = vec!["a.*".to_owned(), "bytes".to_owned()];
    let conversion = model.plan(options).unwrap();
    for name in ["a.weight", "a.weight.absmax"] {
        assert!(conversion.output(name).is_some());
        let error = conversion.tensor(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.tensor(), Some(name));
    }
    assert_eq!(conversion.tensor("bytes").unwrap(), [1, 2, 3]);
}

fn of_shared_storage(flip: bool) -> Vec<u8> {
    use crate::common::pickle::{floats, text, view};
    use crate::common::zip::{Member, Zip};
    let views = [
        text("first"),
        view(&floats(), 0, &[3], &[1]),
        text("second"),
        view(&floats(), 3, &[3], &[1]),
    ];
    let pickle = [b"\x80\x02}(".to_vec(), views.concat(), b"u.".to_vec()].concat();
    let values = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let members = [Member::stored("m/data.pkl", &pickle), Member::stored("m/data/0", &values)];
    let mut bytes = Zip::of(&members).file();
    let at = bytes
        .windows(values.len())
        .position(|window| window == values)
        .unwrap();
    bytes[at + 20] ^= u8::from(flip);
    bytes
}

/// Tensors that are views of one storage have one checksum, which each of them is compared with
/// when it is made alone.
#[test]
fn a_shared_storage_is_verified_for_each_tensor() {
    check(&parse_bytes(of_shared_storage(false)).unwrap(), "views");
    let model = parse_bytes(of_shared_storage(true)).unwrap();
    for name in ["second", "first"] {
        let conversion = model.plan(TargetDtype::BF16).unwrap();
        for result in [conversion.tensor(name), conversion.rows(name, 0..1)] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("checksum"), "{name}: {error}");
        }
    }
}

/// Rows are as safe as whole tensors: a wrong checksum is an error in both, at every call.
#[test]
fn a_wrong_checksum_is_an_error_for_its_tensor_alone() {
    let path = data().join("demo/arrays.npz");
    let model = parse(&path).unwrap();
    let largest = |model: &ParsedModel| {
        let tensor = model.tensors().max_by_key(|t| t.bytes().unwrap().len());
        let tensor = tensor.unwrap();
        (tensor.name().to_owned(), tensor.bytes().unwrap().into_owned())
    };
    let (wrong, stored) = largest(&model);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(stored.len())
        .position(|window| window == stored)
        .unwrap();
    bytes[at] ^= 1;
    let model = parse_bytes(bytes).unwrap();
    let conversion = model.plan(TargetDtype::BF16).unwrap();
    for _ in 0..2 {
        for result in [conversion.rows(&wrong, 1..2), conversion.tensor(&wrong)] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("checksum"), "{error}");
        }
        for other in conversion.outputs().filter(|tensor| tensor.name != wrong) {
            conversion.tensor(other.name).unwrap();
        }
    }
}
