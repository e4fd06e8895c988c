//! What the products of adapters add, against sums of one value at a time.

use half::{bf16, f16};

use super::*;
use crate::common::effort;

/// A weight and the factors of an adapter for it.
struct Case {
    rows: usize,
    cols: usize,
    rank: usize,
    /// The product is multiplied by `alpha / rank`.
    alpha: f64,
    base: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    /// Numbers about 1.
    fn plain([rows, cols]: [usize; 2], rank: usize, alpha: f64) -> Self {
        let numbers = |n: usize, seed: usize| {
            let number = |i: usize| ((i * 7919 + seed) % 1009) as f32 / 251.7 - 2.0;
            (0..n).map(number).collect()
        };
        Self {
            rows,
            cols,
            rank,
            alpha,
            base: numbers(rows * cols, 1),
            a: numbers(rank * cols, 2),
            b: numbers(rows * rank, 3),
        }
    }

    fn expected(&self) -> Vec<f32> {
        let scale = self.alpha / self.rank as f64;
        let values = self.base.iter().enumerate().map(|(i, &value)| {
            let (r, c) = (i / self.cols, i % self.cols);
            let mut sum = 0.0;
            for k in 0..self.rank {
                let (b, a) = (self.b[r * self.rank + k], self.a[k * self.cols + c]);
                sum += f64::from(b) * scale * f64::from(a);
            }
            (sum + f64::from(value)) as f32
        });
        values.collect()
    }

    /// The case whose base is rounded to BF16, and its bytes.
    fn in_bf16(mut self) -> (Self, Vec<u8>) {
        let rounded: Vec<bf16> = self.base.iter().map(|&x| bf16::from_f32(x)).collect();
        self.base = rounded.iter().map(|x| x.to_f32()).collect();
        (self, rounded.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The case whose base is rounded to F16, and its bytes.
    fn in_f16(mut self) -> (Self, Vec<u8>) {
        let rounded: Vec<f16> = self.base.iter().map(|&x| f16::from_f32(x)).collect();
        self.base = rounded.iter().map(|x| x.to_f32()).collect();
        (self, rounded.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The merged weight, or the error.
    fn merged(&self) -> Result<Vec<f32>, String> {
        self.merged_into("F32", f32s(&self.base))
    }

    /// The weight merged into a base of these bytes.
    fn merged_into(&self, dtype: &'static str, base: Vec<u8>) -> Result<Vec<f32>, String> {
        let root = crate::common::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = root.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let tensor =
            |name: &str, shape: [usize; 2], values: &[f32]| raw(name, "F32", &shape, f32s(values));
        let base = [raw("q.weight", dtype, &[self.rows, self.cols], base)];
        let base = write("base.safetensors", &file(&base, &[]));
        let name = |half: &str| format!("base_model.model.q.lora_{half}.weight");
        let factors = [
            tensor(&name("A"), [self.rank, self.cols], &self.a),
            tensor(&name("B"), [self.rows, self.rank], &self.b),
        ];
        write("adapter_model.safetensors", &file(&factors, &[]));
        let config = json!({"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha});
        write("adapter_config.json", config.to_string().as_bytes());
        let options = options(TargetDtype::F32, vec![Adapter::open(root.path()).unwrap()]);
        let out = root.path().join("out.safetensors");
        let run = parse(base).unwrap().convert(&out, options);
        run.map_err(|error| error.to_string())?;
        Ok(values(&parse(&out).unwrap(), "q.weight"))
    }

    fn check(&self) {
        self.compare(&self.merged().unwrap());
    }

    fn compare(&self, got: &[f32]) {
        let want = self.expected();
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let Self { rows, cols, rank, alpha, .. } = self;
            let name = format!("{rows} × {cols} of rank {rank}, {alpha}: value {i}");
            assert_eq!(got.to_bits(), want.to_bits(), "{name}: {got} {want}");
        }
    }
}

/// Scales with which products are exact in F64, and with which they are not; tiles of whole rows
/// and of parts; ranks beyond those of which factors are kept.
#[test]
fn sums_are_rounded_once() {
    // In the gate each shape has all scales, otherwise another one of them.
    let count = effort([1, 3, 3]);
    let shapes = [
        ([1, 1], 1),
        ([37, 50], 3),
        ([9, 16], 40),
        ([2, 200_003], 2),
        ([300, 900], 5),
        ([5, 20], 1100),
    ];
    for (at, (shape, rank)) in shapes.into_iter().enumerate() {
        for scale in [1.0, 0.1, 1.5].into_iter().cycle().skip(at).take(count) {
            let alpha = scale * rank as f64;
            Case::plain(shape, rank, alpha).check();
            let (case, bytes) = Case::plain(shape, rank, alpha).in_bf16();
            case.compare(&case.merged_into("BF16", bytes).unwrap());
            let (case, bytes) = Case::plain(shape, rank, alpha).in_f16();
            case.compare(&case.merged_into("F16", bytes).unwrap());
        }
    }
}

/// Terms that are too large for F32 and cancel each other.
#[test]
fn large_terms_that_make_finite_sums() {
    let mut case = Case::plain([21, 40], 2, 2.0);
    case.b.fill(1e30);
    case.a[..40].fill(2e20);
    case.a[40..].fill(-2e20);
    case.a[7] = 2.000_001e20;
    assert!(
        case.merged()
            .unwrap_err()
            .contains("`q.weight`: what an adapter adds to it is not finite")
    );
    case.a[7] = 2e20;
    case.check();
}

/// One factor that is too large, or no number, in any place.
#[test]
fn what_is_not_finite_is_refused() {
    for wrong in [f32::NAN, f32::INFINITY, 3e38] {
        for place in [0, 19, 39] {
            let mut case = Case::plain([20, 20], 2, 2.0);
            case.a.fill(2.0);
            case.b.fill(2.0);
            case.check();
            case.a[place] = wrong;
            assert!(case.merged().unwrap_err().contains("is not finite"), "{wrong} at {place}");
            case.a[place] = 2.0;
            case.b[place] = wrong;
            assert!(case.merged().unwrap_err().contains("is not finite"), "{wrong} at {place}");
        }
    }
}
