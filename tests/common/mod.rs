//! Helpers of several test programs: safetensors files made in memory, and comparisons of tensors.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

#[path = "../../src/test_utils/cpu_time.rs"]
mod cpu_time;
pub mod directory;
#[path = "../../src/test_utils/effort.rs"]
mod effort;
#[cfg(feature = "lethe")]
pub mod forget;
pub mod gguf;
pub mod ocdbt;
#[cfg(all(feature = "npz", feature = "pth"))]
pub mod pickle;
#[path = "../../src/test_utils/tempdir.rs"]
mod tempdir;
pub mod verdict;
#[cfg(all(feature = "npz", feature = "pth"))]
pub mod zip;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anamnesis::{Dtype, ParsedModel, TargetDtype};
#[allow(unused_imports, reason = "not every program limits time")]
pub use cpu_time::cpu_time;
#[allow(unused_imports, reason = "not every program sweeps")]
pub use effort::effort;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
#[allow(unused_imports, reason = "not every program has files")]
pub use tempdir::tempdir;

/// The three output types with the names that golden files use.
pub const TARGETS: [(TargetDtype, &str); 3] =
    [(TargetDtype::F32, "f32"), (TargetDtype::BF16, "bf16"), (TargetDtype::F16, "f16")];

/// Every dtype of the format, with its bits.
pub const DTYPES: &[(&str, usize)] = &[
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// Name and bits of the dtype `name`, if it is one of the format.
pub fn find_dtype(name: &str) -> Option<(&'static str, usize)> {
    DTYPES.iter().find(|(known, _)| *known == name).copied()
}

/// The directories of all cases of the test data, and those of models in them, sorted.
pub fn case_directories() -> Vec<PathBuf> {
    let below = |path: PathBuf| {
        let entries = std::fs::read_dir(path).unwrap();
        entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir())
    };
    let cases: Vec<_> = below(data()).flat_map(below).collect();
    let models = cases.iter().map(|case| case.join("model"));
    let models = models.filter(|path| path.is_dir());
    let mut all: Vec<_> = models.chain(cases.iter().cloned()).collect();
    all.sort();
    all
}

/// In the gate all directories of cases, otherwise a fifth of each family's, other ones for another
/// `part`.
pub fn some_case_directories(part: usize) -> Vec<PathBuf> {
    let family = |case: &Path| {
        case.strip_prefix(data())
            .unwrap()
            .iter()
            .next()
            .map(ToOwned::to_owned)
    };
    // A case and its `model` follow each other: of an even number of them only one kind would be tried.
    let step = effort([5, 1, 1]);
    let mut all = case_directories();
    all.sort_by_key(|case| family(case));
    let families = all.chunk_by(|a, b| family(a) == family(b));
    let some = families.flat_map(|cases| {
        cases
            .iter()
            .skip(part % step.min(cases.len()))
            .step_by(step)
    });
    some.cloned().collect()
}

/// The directory of test data, for the crate and for the fuzz targets below it.
pub fn data() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut places = above.map(|directory| directory.join("tests/data"));
    places.find(|place| place.is_dir()).unwrap()
}

/// A tensor of a file that a test makes.
#[derive(Clone)]
pub struct Raw {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn raw(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Raw {
    Raw { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    bytes_of(values, f32::to_le_bytes)
}

/// The bytes of all values. Loops over millions of values count here, because iterators take several
/// times as long where nothing is optimised.
pub fn bytes_of<const N: usize>(values: &[f32], to: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    let mut out = vec![0; values.len() * N];
    let (chunks, mut i) = (out.as_chunks_mut().0, 0);
    while i < values.len() {
        chunks[i] = to(values[i]);
        i += 1;
    }
    out
}

/// The values of which `bytes` has each in `N`.
pub fn values_of_bytes<const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let chunks = bytes.as_chunks().0;
    let (mut out, mut i) = (vec![0.0; chunks.len()], 0);
    while i < chunks.len() {
        out[i] = from(chunks[i]);
        i += 1;
    }
    out
}

/// A safetensors file with the tensors in this order, valid or not.
pub fn file(tensors: &[Raw], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let metadata: HashMap<&str, &str> = metadata.iter().copied().collect();
        header.insert("__metadata__".into(), serde_json::json!(metadata));
    }
    let mut data = Vec::new();
    for t in tensors {
        let start = data.len();
        data.extend_from_slice(&t.bytes);
        let record = serde_json::json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]});
        header.insert(t.name.clone(), record);
    }
    let json = serde_json::to_vec(&header).unwrap();
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&json);
    out.extend_from_slice(&data);
    out
}

/// Fails unless `actual` has exactly the tensors of `expected`, bit for bit; NaN equals NaN.
pub fn assert_same(expected: &[u8], actual: &[u8], context: &str) {
    let (expected, actual) =
        (SafeTensors::deserialize(expected).unwrap(), SafeTensors::deserialize(actual).unwrap());
    let names = |s: &SafeTensors<'_>| {
        let mut names: Vec<String> = s.names().iter().map(|n| n.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&expected), names(&actual), "{context}: names");
    for (name, want) in expected.tensors() {
        let got = actual.tensor(&name).unwrap();
        assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()), "{context}: {name}");
        let dtype = Dtype::try_from(want.dtype()).unwrap();
        if let Some(i) = first_difference(dtype, want.data(), got.data()) {
            let size = dtype.bits() / 8;
            let at = i * size..(i + 1) * size;
            panic!(
                "{context}: {name}[{i}]: expected {:02x?}, got {:02x?}",
                &want.data()[at.clone()],
                &got.data()[at]
            );
        }
    }
}

/// The tensors of `f32`, a file of decoded values, rounded once to `target`. Tensors that the model
/// stores in F32 stay.
pub fn rounded(f32: &[u8], model: &ParsedModel, target: TargetDtype) -> Vec<u8> {
    let expected = SafeTensors::deserialize(f32).unwrap();
    let out: Vec<(String, TensorView<'_>, Vec<u8>)> = expected
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            let stored = model
                .tensor(&name)
                .is_some_and(|s| s.dtype() == Dtype::F32 && *s.bytes().unwrap() == *t.data());
            if t.dtype() != safetensors::Dtype::F32 || stored {
                return (name, t, vec![]);
            }
            let values = t
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            let bytes = match target {
                TargetDtype::BF16 => values
                    .flat_map(|v| half::bf16::from_f32(v).to_le_bytes())
                    .collect(),
                TargetDtype::F16 => values
                    .flat_map(|v| half::f16::from_f32(v).to_le_bytes())
                    .collect(),
                _ => vec![],
            };
            (name, t, bytes)
        })
        .collect();
    let dtype = match target {
        TargetDtype::BF16 => safetensors::Dtype::BF16,
        _ => safetensors::Dtype::F16,
    };
    let views = out.iter().map(|(name, t, bytes)| match bytes.is_empty() {
        true => (name, TensorView::new(t.dtype(), t.shape().to_vec(), t.data()).unwrap()),
        false => (name, TensorView::new(dtype, t.shape().to_vec(), bytes).unwrap()),
    });
    safetensors::serialize(views, None).unwrap()
}

/// The index of the first element that differs, where NaN equals NaN.
pub fn first_difference(dtype: Dtype, want: &[u8], got: &[u8]) -> Option<usize> {
    let size = (dtype.bits() / 8).max(1);
    let is_nan = |bytes: &[u8]| match (dtype, bytes) {
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        (Dtype::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).is_nan(),
        (Dtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).is_nan(),
        _ => false,
    };
    assert_eq!(want.len(), got.len());
    if want == got {
        return None;
    }
    let mut pairs = want.chunks(size).zip(got.chunks(size));
    pairs.position(|(w, g)| w != g && !(is_nan(w) && is_nan(g)))
}

/// A small pseudo-random sequence, the same on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let (mut out, mut i) = (vec![0; n], 0);
        while i < n {
            out[i] = (self.next() >> 32) as u8;
            i += 1;
        }
        out
    }

    /// Floats around ±0.01, of both signs.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        let (mut out, mut i) = (vec![0.0; n], 0);
        while i < n {
            out[i] = self.float();
            i += 1;
        }
        out
    }

    pub fn float(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.04
    }
}

/// Runs `check` on every directory below tests/data/`family` that has a file `sign`, and reports
/// all failures. There must be `least` directories.
pub fn each_case(
    family: &str,
    sign: &str,
    least: usize,
    check: impl Fn(&Path) + std::panic::RefUnwindSafe,
) {
    let entries = std::fs::read_dir(data().join(family)).unwrap();
    let mut cases: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    cases.retain(|c| c.join(sign).exists());
    cases.sort();
    assert!(cases.len() >= least, "{family}: only {} cases", cases.len());
    let mut failures = Vec::new();
    for case in cases {
        if let Err(e) = std::panic::catch_unwind(|| check(&case)) {
            let text = e.downcast_ref::<String>().cloned().unwrap_or_default();
            failures.push(format!("{}: {text}", case.display()));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
