//! Encoders against the bytes of their libraries: every case, cut into tiles in several ways, at every CPU level.

use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype as Stored;
use serde_json::Value;

use crate::forget::compressed_tensors::CompressedTensors;
use crate::forget::{Encode, Method, Values, Weight};
use crate::scheme::Tile;
use crate::simd::Level;
use crate::{Dtype, TargetDtype};

/// A file of the generators: `original` and what the library stores of it as `m.…`.
pub(in crate::forget) struct Case {
    pub name: String,
    pub bytes: Vec<u8>,
    pub encoder: Value,
    pub config: Value,
}

impl Case {
    /// All cases of a directory of `tests/data`.
    pub(in crate::forget) fn all(family: &str) -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
        let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().clone().unwrap();
            let json = |key: &str| serde_json::from_str(&metadata[key]).unwrap();
            let (encoder, config) = (json("encoder"), json("config"));
            Self { name: path.file_stem().unwrap().to_string_lossy().into_owned(), bytes, encoder, config }
        };
        paths.iter().map(read).collect()
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.encoder[key].as_u64().map(|n| n as usize)
    }

    fn flag(&self, key: &str) -> bool {
        self.encoder[key].as_bool().unwrap_or_default()
    }

    pub(in crate::forget) fn method(&self) -> Box<dyn Method> {
        let (bits, group) = (self.number("bits").unwrap_or(4), self.number("group"));
        let symmetric = self.flag("symmetric");
        match self.encoder["method"].as_str().unwrap() {
            "compressed-tensors" => {
                Box::new(CompressedTensors { bits, group, symmetric, activations: self.flag("activations") })
            }
            #[cfg(feature = "gptq")]
            "gptq" => {
                let version_2 = self.flag("version_2");
                Box::new(crate::forget::gptq::Gptq { bits, group, symmetric, version_2 })
            }
            #[cfg(feature = "awq")]
            "awq" => Box::new(crate::forget::awq::Awq { group: group.unwrap() }),
            "mlx" => Box::new(mlx(self.encoder["mode"].as_str().unwrap(), bits, group.unwrap())),
            other => panic!("{other}"),
        }
    }
}

fn mlx(mode: &str, bits: usize, group: usize) -> crate::forget::mlx::Mlx {
    use crate::forget::mlx::Mlx;
    use crate::lethe::mlx::Mode;
    match mode {
        "mxfp4" => Mlx::Floating(Mode::Mxfp4),
        "mxfp8" => Mlx::Floating(Mode::Mxfp8),
        "nvfp4" => Mlx::Floating(Mode::Nvfp4),
        _ => Mlx::Affine { bits, group },
    }
}

/// Values of a stored tensor, and its type.
fn widened(view: &safetensors::tensor::TensorView<'_>) -> (Vec<f32>, TargetDtype) {
    let halves = || view.data().as_chunks().0.iter().map(|&b| u16::from_le_bytes(b));
    match view.dtype() {
        Stored::F32 => (view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(), TargetDtype::F32),
        Stored::F16 => (halves().map(|b| f16::from_bits(b).to_f32_const()).collect(), TargetDtype::F16),
        Stored::BF16 => (halves().map(|b| bf16::from_bits(b).to_f32()).collect(), TargetDtype::BF16),
        other => panic!("{other:?}"),
    }
}

/// Tiles of about `rows` × `cols`, where the grid allows them.
fn tiles(encoder: &dyn Encode, rows: usize, cols: usize) -> Vec<Tile> {
    let grid = encoder.grid();
    let steps = |n: usize, align: usize, step: usize| {
        let step = (step / align * align).max(align);
        (0..n).step_by(step).map(move |at| at..(at + step).min(n)).collect::<Vec<_>>()
    };
    let columns = steps(grid.cols, grid.col_align, cols);
    let rows = steps(grid.rows, grid.row_align, rows);
    rows.iter().flat_map(|rows| columns.iter().map(|cols| Tile { rows: rows.clone(), cols: cols.clone() })).collect()
}

/// What encoding gives: the bytes of every stored tensor, all written once, and the values of decoding.
fn encoded(encoder: &dyn Encode, values: &[f32], level: Level, step: (usize, usize)) -> (Vec<Vec<u8>>, Vec<f32>) {
    let cols = encoder.grid().cols;
    let size = |stored: &crate::forget::Stored| stored.shape.iter().product::<usize>() * stored.dtype.bits() / 8;
    let mut out: Vec<Vec<u8>> = encoder.stored().iter().map(|stored| vec![0; size(stored)]).collect();
    let mut written: Vec<Vec<bool>> = out.iter().map(|bytes| vec![false; bytes.len()]).collect();
    let mut all = vec![f32::NAN; values.len()];
    for tile in tiles(encoder, step.0, step.1).iter().rev() {
        let of_row = |row: usize| row * cols + tile.cols.start..row * cols + tile.cols.end;
        let part: Vec<f32> = tile.rows.clone().flat_map(|row| values[of_row(row)].iter().copied()).collect();
        let mut back = vec![f32::NAN; part.len()];
        let input = Values { tile, values: &part, survey: 0.0, level };
        let mut put = |part: usize, at: u64, bytes: &[u8]| {
            let range = at as usize..at as usize + bytes.len();
            out[part][range.clone()].copy_from_slice(bytes);
            written[part][range].iter_mut().for_each(|written| assert!(!std::mem::replace(written, true)));
            Ok(())
        };
        encoder.encode(&input, &mut back, &mut put).unwrap();
        for (row, back) in tile.rows.clone().zip(back.chunks_exact(tile.cols.len())) {
            all[of_row(row)].copy_from_slice(back);
        }
    }
    assert!(written.iter().flatten().all(|&written| written));
    (out, all)
}

/// Differing bytes of a case, of all.
fn compare(case: &Case) -> (usize, usize) {
    let file = SafeTensors::deserialize(&case.bytes).unwrap();
    let original = file.tensor("original").unwrap();
    let (values, dtype) = widened(&original);
    let weight = Weight { name: "m.weight", shape: original.shape(), dtype };
    let method = case.method();
    assert_eq!(method.objection(&weight), None, "{}", case.name);
    let encoder = method.encoder(&weight).unwrap();
    let (ours, back) = encoded(&*encoder, &values, Level::Baseline, (usize::MAX / 2, usize::MAX / 2));
    for level in Level::available() {
        for step in [(1, 1), (33, 100), (8, 64), (usize::MAX / 2, 32)] {
            let again = encoded(&*encoder, &values, level, step);
            let same = again.1.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(again.0 == ours && same, "{}: {level:?}, {step:?}", case.name);
        }
    }
    let stored = encoder.stored();
    let names: HashMap<&str, usize> = stored.iter().enumerate().map(|(i, stored)| (stored.name.as_str(), i)).collect();
    assert_eq!(names.len() + 1, file.len(), "{}", case.name);
    let (mut differing, mut all) = (0, 0);
    for (name, &i) in &names {
        let theirs = file.tensor(name).unwrap();
        assert_eq!(theirs.shape(), stored[i].shape, "{}: {name}", case.name);
        assert_eq!(format!("{:?}", theirs.dtype()), stored[i].dtype.name(), "{}: {name}", case.name);
        let count = theirs.data().iter().zip(&ours[i]).filter(|(a, b)| a != b).count();
        if count > 0 {
            let at = theirs.data().iter().zip(&ours[i]).position(|(a, b)| a != b).unwrap();
            println!("{}: {name} differs in {count} of {} bytes, first {at}", case.name, ours[i].len());
        }
        (differing, all) = (differing + count, all + ours[i].len());
    }
    (differing, all)
}

/// Every case of a directory.
pub(in crate::forget) fn check_all(family: &str) {
    let (mut differing, mut all) = (0, 0);
    for case in Case::all(family) {
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
