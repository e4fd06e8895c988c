//! What a comparison has shown.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::pairs::{Pairing, StoredSide};
use super::{Compared, DiffOptions};
use crate::{Dtype, QuantScheme};

/// The differences between two models `a` and `b`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiffReport {
    /// Largest absolute difference of values that count as equal.
    pub tolerance: f64,
    /// Whether only names, shapes and values count as differences.
    pub values_only: bool,
    /// Number of tensors of one name that do not differ at all.
    pub equal: usize,
    /// Tensors that only `a` has.
    pub only_in_a: Vec<ComparedTensor>,
    /// Tensors that only `b` has.
    pub only_in_b: Vec<ComparedTensor>,
    /// Tensors of one name that differ in dtype, scheme, shape or values, in the order of `a`.
    pub changed: Vec<TensorDiff>,
    /// Differences of metadata: `__metadata__` of safetensors, keys of GGUF.
    pub metadata: Vec<FieldDiff>,
    /// Differences of the JSON files beside the models that describe a quantization, such as
    /// `config.json`.
    pub config: Vec<FieldDiff>,
    /// What was not compared.
    pub notes: Vec<String>,
}

/// A tensor by the name that it has when it is decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComparedTensor {
    /// Name of the decoded tensor.
    pub name: String,
    /// Element type of the stored tensor; of a quantized one, that of its codes.
    pub dtype: Dtype,
    /// Quantization scheme.
    pub scheme: QuantScheme,
    /// Shape of the decoded tensor, outermost dimension first.
    pub shape: Vec<usize>,
}

/// A tensor of both models that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorDiff {
    /// Name of the decoded tensor.
    pub name: String,
    /// The tensor in the first model.
    pub a: ComparedTensor,
    /// The tensor in the second model.
    pub b: ComparedTensor,
    /// Differences of the values; `None` if the shapes differ, or if the element types cannot be
    /// compared.
    pub values: Option<ValueDiff>,
}

/// Differences of the values of a tensor. A complex value counts as two.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValueDiff {
    /// Number of values. Types whose values cannot be computed, such as codes of six bits, are
    /// compared as bytes.
    pub values: u64,
    /// Number of values that are not equal.
    pub unequal: u64,
    /// Number of values that differ by more than the tolerance.
    pub beyond_tolerance: u64,
    /// Number of values that differ and are NaN or infinite on a side. They are not in the figures
    /// below.
    pub not_finite: u64,
    /// Largest absolute difference; `None` if the types have no numbers.
    pub max_abs: Option<f64>,
    /// Mean absolute difference.
    pub mean_abs: Option<f64>,
    /// Root of the mean squared difference.
    pub rmse: Option<f64>,
    /// Cosine of the angle between the tensors as vectors; `None` if one of them is zero.
    pub cosine: Option<f64>,
    /// The first value, in row-major order, that differs by more than the tolerance.
    pub first: Option<FirstDifference>,
}

/// The first value that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FirstDifference {
    /// Its coordinates in the tensor.
    pub index: Vec<u64>,
    /// The value in the first model.
    pub a: ElementValue,
    /// The value in the second model.
    pub b: ElementValue,
}

/// One value of a tensor. As JSON it is a number, or one of the texts `NaN`, `Infinity` and
/// `-Infinity`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ElementValue {
    /// An integer of at most 64 bits.
    Int(i128),
    /// A float, or a value that was decoded to one.
    Float(f64),
}

/// A value of metadata or of a config that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FieldDiff {
    /// Key of the metadata, or file and path of keys, such as `config.json: rope_scaling.factor`.
    pub path: String,
    /// The value in the first model; `None` if it has none.
    pub a: Option<Value>,
    /// The value in the second model; `None` if it has none.
    pub b: Option<Value>,
}

impl ElementValue {
    /// The value in F64, to which integers beyond 2^53 are rounded.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Int(x) => x as f64,
            Self::Float(x) => x,
        }
    }
}

impl std::fmt::Display for ElementValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(x) => x.fmt(f),
            Self::Float(x) => write!(f, "{x:?}"),
        }
    }
}

impl Serialize for ElementValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Int(x) => serializer.serialize_i128(x),
            Self::Float(x) if x.is_nan() => serializer.serialize_str("NaN"),
            Self::Float(f64::INFINITY) => serializer.serialize_str("Infinity"),
            Self::Float(f64::NEG_INFINITY) => serializer.serialize_str("-Infinity"),
            Self::Float(x) => serializer.serialize_f64(x),
        }
    }
}

impl TensorDiff {
    /// Whether dtype or scheme differ.
    #[must_use]
    pub fn is_stored_differently(&self) -> bool {
        (self.a.dtype, self.a.scheme) != (self.b.dtype, self.b.scheme)
    }

    /// Whether shape or values differ, by more than the tolerance.
    #[must_use]
    pub fn has_other_values(&self) -> bool {
        self.values.as_ref().is_none_or(|v| v.beyond_tolerance > 0)
    }
}

impl DiffReport {
    pub(super) fn new(options: &DiffOptions) -> Self {
        Self {
            tolerance: options.tolerance,
            values_only: options.values_only,
            equal: 0,
            only_in_a: Vec::new(),
            only_in_b: Vec::new(),
            changed: Vec::new(),
            metadata: Vec::new(),
            config: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether the models differ: in tensors, shapes, or values by more than the tolerance, and
    /// unless only values count, in dtypes, schemes, metadata or configs.
    #[must_use]
    pub fn is_different(&self) -> bool {
        let is_stored_differently = || {
            let mut changed = self.changed.iter();
            changed.any(TensorDiff::is_stored_differently)
                || !self.metadata.is_empty()
                || !self.config.is_empty()
        };
        !self.only_in_a.is_empty()
            || !self.only_in_b.is_empty()
            || self.changed.iter().any(TensorDiff::has_other_values)
            || !self.values_only && is_stored_differently()
    }

    /// Adds the tensors of `pairing`, with the differences of their values.
    pub(super) fn add_tensors(&mut self, pairing: Pairing<'_>, values: Vec<Compared>) {
        let describe = |sides: Vec<StoredSide<'_>>| {
            let sides = sides.into_iter();
            sides.map(StoredSide::into_tensor).collect::<Vec<_>>()
        };
        self.only_in_a = describe(pairing.only_in_a);
        self.only_in_b = describe(pairing.only_in_b);
        for (pair, compared) in pairing.pairs.into_iter().zip(values) {
            let (a, b) = (pair.a.into_tensor(), pair.b.into_tensor());
            let values = match compared {
                Compared::Same => {
                    self.equal += 1;
                    continue;
                }
                Compared::Incomparable => None,
                Compared::Sums(sums, kind) => Some(sums.into_diff(&a.shape, kind)),
            };
            let changed = TensorDiff { name: a.name.clone(), a, b, values };
            let has_equal_values = changed.values.as_ref().is_some_and(|v| v.unequal == 0);
            if has_equal_values && !changed.is_stored_differently() {
                self.equal += 1;
            } else {
                self.changed.push(changed);
            }
        }
    }
}

impl StoredSide<'_> {
    pub(super) fn into_tensor(self) -> ComparedTensor {
        ComparedTensor {
            name: self.name,
            dtype: self.dtype,
            scheme: self.scheme,
            shape: self.shape,
        }
    }
}
