//! Integers in groups against the bytes of their libraries: every case, in tiles of several sizes,
//! at every CPU level.

mod cases;

use std::collections::HashMap;

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype as SafetensorsDtype;
use serde_json::json;

use self::cases::{GroupedCase, mlx};
use crate::TargetDtype;
use crate::lethe::compressed_tensors::CompressedTensors;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::{Encode, EncodeBuffers, Method, Survey, TileValues, WeightInfo};
use crate::remember::Tile;
use crate::simd::Level;

/// Directories of cases.
const FAMILIES: [&str; 4] = ["int_encode", "mlx_encode", "hqq_encode", "sdnq_encode"];

/// Values of a stored tensor, and its type.
fn widened(view: &safetensors::tensor::TensorView<'_>) -> (Vec<f32>, TargetDtype) {
    let halves = || {
        view.data()
            .as_chunks()
            .0
            .iter()
            .map(|&b| u16::from_le_bytes(b))
    };
    match view.dtype() {
        SafetensorsDtype::F32 => (
            view.data()
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
            TargetDtype::F32,
        ),
        SafetensorsDtype::F16 => {
            (halves().map(|b| f16::from_bits(b).to_f32_const()).collect(), TargetDtype::F16)
        }
        SafetensorsDtype::BF16 => {
            (halves().map(|b| bf16::from_bits(b).to_f32()).collect(), TargetDtype::BF16)
        }
        other => panic!("{other:?}"),
    }
}

/// Tiles of about `rows` × `cols`, where the grid allows them.
fn tiles(encoder: &dyn Encode, rows: usize, cols: usize) -> Vec<Tile> {
    let grid = encoder.grid();
    let steps = |n: usize, align: usize, step: usize| {
        let step = (step / align * align).max(align);
        (0..n)
            .step_by(step)
            .map(move |at| at..(at + step).min(n))
            .collect::<Vec<_>>()
    };
    let columns = steps(grid.cols, grid.col_align, cols);
    let rows = steps(grid.rows, grid.row_align, rows);
    rows.iter()
        .flat_map(|rows| {
            columns
                .iter()
                .map(|cols| Tile { rows: rows.clone(), cols: cols.clone() })
        })
        .collect()
}

/// The bytes of every stored tensor, each written once, and the values that decoding gives
/// according to the encoder.
fn encoded(
    encoder: &dyn Encode,
    values: &[f32],
    level: Level,
    step: (usize, usize),
) -> (Vec<Vec<u8>>, Vec<f32>) {
    let cols = encoder.grid().cols;
    let survey = match encoder.survey() {
        Some(Survey::Steps) => encoder.step_errors(values, level).steps(values.len()) as f64,
        _ => 0.0,
    };
    let size = |stored: &crate::lethe::StoredTensor| {
        stored.shape.iter().product::<usize>() * stored.dtype.bits() / 8
    };
    let mut out: Vec<Vec<u8>> = encoder
        .stored()
        .iter()
        .map(|stored| vec![0; size(stored)])
        .collect();
    let mut written: Vec<Vec<bool>> = out.iter().map(|bytes| vec![false; bytes.len()]).collect();
    let mut all = vec![f32::NAN; values.len()];
    // One for all tiles, which are of several sizes at the edges.
    let mut buffers = EncodeBuffers::default();
    for tile in tiles(encoder, step.0, step.1).iter().rev() {
        // Behind the last value there may be a rest of the grid.
        let of_row = |row: usize| {
            let [first, end] = [tile.cols.start, tile.cols.end].map(|col| row * cols + col);
            first.min(values.len())..end.min(values.len())
        };
        let part: Vec<f32> = tile
            .rows
            .clone()
            .flat_map(|row| values[of_row(row)].iter().copied())
            .collect();
        let mut back = vec![f32::NAN; part.len()];
        let input = TileValues {
            tile,
            values: &part,
            survey,
            maxima: &[],
            activations: Activations::default(),
            level,
        };
        let mut put = |part: usize, at: u64, bytes: &[u8]| {
            let range = at as usize..at as usize + bytes.len();
            out[part][range.clone()].copy_from_slice(bytes);
            written[part][range]
                .iter_mut()
                .for_each(|written| assert!(!std::mem::replace(written, true)));
            Ok(())
        };
        encoder
            .encode(&input, &mut buffers, &mut back, &mut put)
            .unwrap();
        for (row, back) in tile.rows.clone().zip(back.chunks(tile.cols.len())) {
            all[of_row(row)].copy_from_slice(back);
        }
    }
    assert!(written.iter().flatten().all(|&written| written));
    (out, all)
}

/// The encoder of a case, and the values that it is given.
fn encoder(case: &GroupedCase) -> (Box<dyn Encode>, Vec<f32>) {
    let file = SafeTensors::deserialize(&case.bytes).unwrap();
    let original = file.tensor("original").unwrap();
    let (values, dtype) = widened(&original);
    let weight = WeightInfo { name: "m.weight", shape: original.shape(), dtype };
    let method = case.method();
    assert_eq!(method.objection(&weight), None, "{}", case.name);
    (method.encoder(&weight).unwrap(), values)
}

/// The number of bytes of a case that differ from the library's, and the number of all its bytes.
fn compare(case: &GroupedCase) -> (usize, usize) {
    let file = SafeTensors::deserialize(&case.bytes).unwrap();
    let (encoder, values) = encoder(case);
    let (ours, back) =
        encoded(&*encoder, &values, Level::Baseline, (usize::MAX / 2, usize::MAX / 2));
    for level in Level::available() {
        for step in [(1, 1), (33, 100), (8, 64), (usize::MAX / 2, 32)] {
            let again = encoded(&*encoder, &values, level, step);
            let same = again
                .1
                .iter()
                .zip(&back)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(again.0 == ours && same, "{}: {level:?}, {step:?}", case.name);
        }
    }
    let stored = encoder.stored();
    let names: HashMap<&str, usize> = stored
        .iter()
        .enumerate()
        .map(|(i, stored)| (stored.name.as_str(), i))
        .collect();
    assert_eq!(names.len() + 1, file.len(), "{}", case.name);
    let (mut differing, mut all) = (0, 0);
    for (name, &i) in &names {
        let theirs = file.tensor(name).unwrap();
        assert_eq!(theirs.shape(), stored[i].shape, "{}: {name}", case.name);
        assert_eq!(
            format!("{:?}", theirs.dtype()),
            stored[i].dtype.name(),
            "{}: {name}",
            case.name
        );
        let count = theirs
            .data()
            .iter()
            .zip(&ours[i])
            .filter(|(a, b)| a != b)
            .count();
        if count > 0 {
            let at = theirs
                .data()
                .iter()
                .zip(&ours[i])
                .position(|(a, b)| a != b)
                .unwrap();
            println!(
                "{}: {name} differs in {count} of {} bytes, first {at}",
                case.name,
                ours[i].len()
            );
        }
        (differing, all) = (differing + count, all + ours[i].len());
    }
    (differing, all)
}

/// The values that this crate decodes from the stored tensors `parts`.
fn decoded(case: &GroupedCase, encoder: &dyn Encode, parts: &[Vec<u8>]) -> Vec<f32> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (stored, bytes) in encoder.stored().iter().zip(parts) {
        let at = data.len();
        data.extend_from_slice(bytes);
        let record = json!({"dtype": stored.dtype.name(), "shape": stored.shape, "data_offsets": [at, data.len()]});
        header.insert(stored.name.clone(), record);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend_from_slice(&data);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, file).unwrap();
    let method = case.method();
    let config = json!({ "quantization_config": method.config(&[]) });
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let model = crate::parse(&path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let bytes = model
        .remember_to_bytes(TargetDtype::F32)
        .unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    widened(&file.tensor("m.weight").unwrap()).0
}

#[test]
fn decoding_gives_the_values_of_the_encoder() {
    for case in FAMILIES.into_iter().flat_map(GroupedCase::all) {
        let (encoder, values) = encoder(&case);
        let (parts, back) = encoded(&*encoder, &values, Level::detect(), (64, 64));
        let decoded = decoded(&case, &*encoder, &parts);
        assert_eq!(decoded.len(), back.len(), "{}", case.name);
        for (i, (ours, said)) in decoded.iter().zip(&back).enumerate() {
            let same = ours.to_bits() == said.to_bits() || ours.is_nan() && said.is_nan();
            assert!(same, "{}, value {i}: {ours:e}, {said:e}", case.name);
        }
    }
}

/// Except for the `meta` in which a library names itself.
#[test]
fn configs_equal_their_libraries() {
    let cases = FAMILIES.into_iter().flat_map(|family| {
        GroupedCase::all(family)
            .into_iter()
            .map(move |c| (family, c))
    });
    for (family, case) in cases {
        let mut ours = case.method().config(&["lm_head".to_owned()]).unwrap();
        if family == "mlx_encode" {
            // mlx-lm accepts the key, but does not write it.
            assert_eq!(ours.as_object_mut().unwrap().remove("lm_head"), Some(json!(false)));
        }
        if let Some(meta) = ours.get_mut("meta") {
            *meta = case.config["meta"].clone();
        }
        assert_eq!(ours, case.config, "{}", case.name);
    }
}

#[test]
fn objections() {
    let ct = CompressedTensors::W4A16;
    let object_to = |method: &dyn Method, name: &str, shape: &[usize]| {
        let weight = WeightInfo { name, shape, dtype: TargetDtype::BF16 };
        method.objection(&weight).unwrap_or_default()
    };
    let object = |method: &dyn Method, shape: &[usize]| object_to(method, "m.weight", shape);
    assert_eq!(object(&ct, &[3, 256]), "");
    assert_eq!(object(&ct, &[3, 200]), "its 200 columns are no multiple of 128");
    assert_eq!(object(&ct, &[2, 3, 256]), "it has 3 dimensions and no two");
    assert_eq!(object(&ct, &[256]), "it has 1 dimensions and no two");
    assert_eq!(object(&ct, &[0, 256]), "there is nothing in it");
    assert_eq!(
        object(&CompressedTensors::W8A8, &[1, (1 << 19) + 1]),
        "its 524289 columns are more than 524288"
    );
    assert_eq!(object(&mlx("affine", 4, 64), &[64]), "it has fewer than two dimensions");
    assert_eq!(object(&mlx("affine", 4, 64), &[2, 3, 64]), "");
    assert_eq!(
        object(&crate::lethe::gptq::Gptq::INT4, &[12, 128]),
        "its 12 rows are no multiple of 8"
    );
    assert_eq!(
        object(&crate::lethe::awq::Awq::default(), &[40, 128]),
        "its 40 rows are no multiple of 32"
    );
    // Codes of such a row would end within a word, and MLX has no such groups.
    for group in [1, 16, 33, 256] {
        assert_eq!(
            object(&mlx("affine", 2, group), &[64, 256 * 33]),
            format!("MLX has no groups of {group} values")
        );
    }
    let modules: [&dyn Method; 3] = [
        &mlx("affine", 4, 64),
        &crate::lethe::gptq::Gptq::INT4,
        &crate::lethe::awq::Awq::default(),
    ];
    for method in modules {
        assert_eq!(
            object_to(method, "experts.gate_up_proj", &[64, 128]),
            "it is no module's weight, and the name would be another"
        );
    }
}

/// F16 can hold neither the scale nor the range.
#[test]
fn scales_that_cannot_be_stored_are_errors() {
    let methods: [Box<dyn Method>; 2] =
        [Box::new(crate::lethe::gptq::Gptq::INT4), Box::new(crate::lethe::awq::Awq::default())];
    for method in methods {
        let weight = WeightInfo { name: "m.weight", shape: &[32, 128], dtype: TargetDtype::BF16 };
        let encoder = method.encoder(&weight).unwrap();
        let tile = Tile { rows: 0..32, cols: 0..128 };
        let values: Vec<f32> = (0..32 * 128)
            .map(|i| if i == 5 { 1e6 } else { 0.0 })
            .collect();
        let input = TileValues {
            tile: &tile,
            values: &values,
            survey: 0.0,
            maxima: &[],
            activations: Activations::default(),
            level: Level::Baseline,
        };
        let error = encoder
            .encode(
                &input,
                &mut EncodeBuffers::default(),
                &mut vec![0.0; values.len()],
                &mut |_, _, _| Ok(()),
            )
            .unwrap_err();
        assert!(format!("{error:?}").contains("m.weight"));
    }
}

/// Every case of a directory.
fn check_all(family: &str) {
    let (mut differing, mut all) = (0, 0);
    for case in GroupedCase::all(family) {
        let (count, of) = compare(&case);
        println!("{}: {count} of {of}", case.name);
        (differing, all) = (differing + count, all + of);
    }
    assert_eq!(differing, 0, "of {all} bytes of {family}");
}

#[test]
fn integers_equal_their_libraries() {
    check_all("int_encode");
}

#[test]
fn encodings_equal_mlx() {
    check_all("mlx_encode");
}

#[test]
fn encodings_equal_hqq() {
    check_all("hqq_encode");
}

#[test]
fn encodings_equal_sdnq() {
    check_all("sdnq_encode");
}
