//! optimum-quanto. Eight bits: `X.weight._data` I8 or FP8 with `X.weight._scale`, a scale for each
//! row. Four and two bits: `X.weight._data._data` U8 with `X.weight._scale` and `X.weight._shift`,
//! both `[rows, 1]`; rows are packed at a stride, the first ones in the lowest bits
//! (`layout/strided.rs`). A wide matrix is reshaped so that each group is a row. The file then does
//! not have its shape, which `QuantoLayer::find_shape` restores.
//!
//! Formulas: quanto `tensor/function.py`, `tensor/weights/qbits.py` (`QBitsDequantizer`), in the
//! type T of the scales: `T(T(scale * q) - shift)`; with an integer shift `scale * (q - shift)`.

use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::strided::StridedRows;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::{by_dimension, granularity, per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Integers, Matrix, Negated};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    module_of, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Quanto;

/// Name in listings.
const FAMILY: &str = "quanto";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Quanto],
    codes: &["._data"],
    companions: &[
        (Ends(".weight._scale"), TensorRole::Scale),
        (Ends(".weight._shift"), TensorRole::ZeroPoint),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[Is("quantization_map.json"), Ends("_qmap.json")],
    container: None,
};

impl Scheme for Quanto {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(data) = t.name().strip_suffix("._data") else {
            return Ok(None);
        };
        let (name, is_packed) = data
            .strip_suffix("._data")
            .map_or((data, false), |name| (name, true));
        // Without the scale, `_data` of another name can be anybody's tensor; below a weight it can
        // only be quanto's.
        let scale = match all.at(name, "._scale") {
            Some(scale) => scale,
            None if name.ends_with("weight") => all.need(t, name, "._scale")?,
            None => return Ok(None),
        };
        let layer = QuantoLayer { t: *t, name, scale, all };
        let (codes, scales, shape, decoder, shift) = if is_packed {
            layer.packed_decoder()?
        } else {
            layer.byte_decoder()?
        };
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        parts.extend(shift.map(|shift| (TensorRole::ZeroPoint, shift)));
        let scheme = QuantScheme::Grouped { family: FAMILY, codes, scales };
        Ok(Some(Group::new(name.to_owned(), shape, scheme, parts, Box::new(decoder))))
    }
}

/// A weight that is being claimed.
struct QuantoLayer<'a, 'm> {
    t: Tensor<'m>,
    name: &'m str,
    scale: Tensor<'m>,
    all: &'a Index<'m>,
}

/// Kind of the codes, granularity of the scales, logical shape, decoder, and shift.
type QuantoDecoder<'m> = (CodeType, Granularity, Vec<usize>, Grouped<'m>, Option<Tensor<'m>>);

impl<'m> QuantoLayer<'_, 'm> {
    /// The type of the weight (`qint4`, …) in `quantization_map.json`, which quanto stores beside
    /// the model.
    fn mapped_type(&self) -> Option<&str> {
        let module = self.all.config.at(module_of(self.name));
        module.text(&["weights"]).map(|(text, _)| text)
    }

    fn misfit(&self, part: &Tensor<'_>) -> crate::AnamnesisError {
        wrong(&self.t, format!("its `{}` {:?} does not fit", part.name(), part.shape()))
    }

    fn byte_decoder(&self) -> Result<QuantoDecoder<'m>> {
        let (codes, names): (_, &[&str]) = match self.t.dtype() {
            Dtype::I8 => (CodeType::Int(8), &["qint8"]),
            Dtype::F8E4M3 => (CodeType::Fp8, &["qfloat8", "qfloat8_e4m3fn"]),
            Dtype::F8E5M2 => (CodeType::Fp8, &["qfloat8_e5m2"]),
            Dtype::F8E4M3Fnuz => (CodeType::Fp8, &["qfloat8_e4m3fnuz"]),
            _ => (CodeType::Fp8, &[]),
        };
        let Some(code_format) = CodeFormat::of_bytes(self.t.dtype()) else {
            return Err(wrong(&self.t, "its codes are neither I8 nor eight-bit floats"));
        };
        // The dtype proves the type: the map is only checked.
        if let Some(mapped_type) = self
            .mapped_type()
            .filter(|mapped_type| !names.contains(mapped_type))
        {
            return Err(wrong(
                &self.t,
                format!("the model's map of its modules says {mapped_type}"),
            ));
        }
        let shape = self.t.shape();
        // A single number may come in any shape. quanto's modules quantize along axis 0: more
        // numbers are one for each index of it, and the other dimensions are kept as ones.
        let is_by_row = self
            .scale
            .shape()
            .split_first()
            .is_some_and(|(n, ones)| Some(n) == shape.first() && ones.iter().all(|&n| n == 1));
        let grid = match self.scale.elements() {
            1 => Some(per_tensor(shape)),
            _ if is_by_row => by_dimension(shape, self.scale.shape()),
            _ => None,
        };
        let grid = grid.ok_or_else(|| self.misfit(&self.scale))?;
        let (rows, cols) = rows_and_cols(shape);
        let stored = Codes::Rows { part: self.t.part(), row_bytes: cols };
        let scales = Box::new(Matrix { floats: Floats::ieee(&self.scale)?, cols: grid.cols });
        let decoder = Grouped::scaled(stored, 8, code_format, [rows, cols], grid, scales);
        Ok((codes, granularity(&grid, cols), shape.to_vec(), decoder, None))
    }

    fn packed_decoder(&self) -> Result<QuantoDecoder<'m>> {
        let shift = self.all.need(&self.t, self.name, "._shift")?;
        let rows = self.scale.shape().first().copied().unwrap_or(0);
        let (Some((&packed, dims @ [_, ..])), Dtype::U8) =
            (self.t.shape().split_first(), self.t.dtype())
        else {
            return Err(wrong(&self.t, "packed codes are U8 and have two dimensions or more"));
        };
        if self.scale.elements() != rows || shift.elements() != rows {
            return Err(self.misfit(if self.scale.elements() == rows {
                &shift
            } else {
                &self.scale
            }));
        }
        let bits = self.bits(packed, rows)?;
        let cols = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let cols = cols.ok_or_else(|| wrong(&self.t, "its size overflows"))?;
        // Codes of more than two dimensions are not grouped, and keep their shape behind the packed
        // one.
        let whole: Vec<usize> = std::iter::once(rows).chain(dims.iter().copied()).collect();
        // Groups are stored with two dimensions; more of them are the weight's own.
        let shape = if dims.len() == 1 {
            self.find_shape(rows, cols)?
        } else {
            whole
        };
        let codes =
            Codes::Unpacked(Box::new(StridedRows::low_first(self.t.part(), packed, cols, bits)));
        let column = |t| Floats::ieee(t).map(|floats| Box::new(Matrix { floats, cols: 1 }));
        let code_format = CodeFormat::Int(Int::UNSIGNED);
        let mut decoder = Grouped::scaled(
            codes,
            bits,
            code_format,
            [rows, cols],
            row_groups(cols, cols),
            column(&self.scale)?,
        );
        if shift.dtype().is_floating_point() {
            // The formula adds its offsets, and quanto subtracts the shift. `a - b` is `a + -b` for
            // floats.
            let offsets = GroupOffsets::new(Box::new(Negated(column(&shift)?)))
                .computed_in(TargetDtype::of(self.scale.dtype()));
            decoder.formula = GroupFormula::ScaleShift(offsets);
        } else {
            // `zeropoint=True` rounds the shift to bytes (`AffineOptimizer`).
            if !matches!(shift.dtype(), Dtype::U8 | Dtype::I8) {
                return Err(wrong(&shift, "a shift is a float or a byte"));
            }
            let zero_points = Box::new(Integers::new(&shift, 1, 0.0)?);
            decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
        }
        let width = cols.min(shape[1..].iter().product());
        let scales = if rows == shape[0] {
            Granularity::Channel
        } else {
            Granularity::Group(width)
        };
        Ok((CodeType::Int(bits as u8), scales, shape, decoder, Some(shift)))
    }

    /// Bits of a code: the one of 4 and 2 with which `rows` rows take `packed` rows of bytes, and
    /// which the map does not exclude.
    ///
    /// # Errors
    /// Neither fits or, which is possible for few rows, both do.
    fn bits(&self, packed: usize, rows: usize) -> Result<usize> {
        // The last byte of a column may be partly used, so rows are rounded up.
        let fits = |bits: &usize| rows.div_ceil(8 / bits) == packed;
        let mapped_type = match self.mapped_type() {
            Some("qint4") => vec![4],
            Some("qint2") => vec![2],
            Some(_) => vec![],
            None => vec![4, 2],
        };
        match mapped_type
            .into_iter()
            .filter(fits)
            .collect::<Vec<_>>()
            .as_slice()
        {
            &[bits] => Ok(bits),
            several => {
                let what = format!(
                    "{rows} scales and the model's map of its modules leave these bits: {several:?}"
                );
                Err(wrong(&self.t, what))
            }
        }
    }

    /// The shape of a matrix that is stored as `rows` rows of `width`, each of which is a group or
    /// a row of the matrix.
    ///
    /// The number of outputs is known from a bias or from config.json. Without either, the shape
    /// has to be the only one that quanto stores like this.
    ///
    /// # Errors
    /// Several shapes are possible. A guess would keep the values and give the tensor a wrong
    /// shape, so it is an error.
    fn find_shape(&self, rows: usize, width: usize) -> Result<Vec<usize>> {
        let module = module_of(self.name);
        let bias = self
            .all
            .at(module, ".bias")
            .filter(|bias| bias.shape().len() == 1)
            .map(|bias| bias.elements());
        // A bias has an entry for each output. Without one, a single possibility is proof enough.
        let found = match (bias, first_two_shapes(rows, width)) {
            (Some(n), _) => matching_shape(rows, width, Some(n), None),
            (None, [only, None]) => only,
            (None, _) => {
                let [outputs, inputs] = self.all.config.layer_sizes(module);
                matching_shape(rows, width, outputs, inputs)
            }
        };
        // Grouping drops the further dimensions of a convolution.
        let lost = module.contains("conv") && found != ungrouped_shape(rows, width);
        match found.filter(|_| !lost) {
            Some([rows, cols]) => Ok(vec![rows, cols]),
            None => {
                let what = "it is stored without its shape, which neither a bias nor config.json tells beyond doubt";
                Err(refused(&self.t, FAMILY, what))
            }
        }
    }
}

/// The group size that quanto chooses for rows of `cols` values; `None` if it does not group them.
fn group_size(cols: usize) -> Option<usize> {
    // quanto takes the first of these that divides the row.
    [128, 96, 64, 32]
        .into_iter()
        .find(|&size| cols > 128 && cols.is_multiple_of(size))
}

/// The shape `[rows, width]`, if quanto does not group rows of that width.
fn ungrouped_shape(rows: usize, width: usize) -> Option<[usize; 2]> {
    group_size(width).is_none().then_some([rows, width])
}

/// The shape of the matrix whose rows quanto stores as `n` groups of `width` each, if there is one.
fn grouped_shape(rows: usize, width: usize, n: usize) -> Option<[usize; 2]> {
    let cols = width
        .checked_mul(n)
        .filter(|_| n > 1 && rows.is_multiple_of(n))?;
    // Both directions: the width that quanto would choose for these columns must be the stored one.
    (group_size(cols) == Some(width)).then_some([rows / n, cols])
}

/// The shape with `outputs` rows and `inputs` columns, as far as they are known, that quanto stores
/// as `rows` × `width`.
fn matching_shape(
    rows: usize,
    width: usize,
    outputs: Option<usize>,
    inputs: Option<usize>,
) -> Option<[usize; 2]> {
    let n = match (outputs, inputs) {
        (_, Some(inputs)) if width > 0 && inputs.is_multiple_of(width) => inputs / width,
        (Some(outputs), None) if outputs > 0 && rows.is_multiple_of(outputs) => rows / outputs,
        _ => return None,
    };
    let found = if n == 1 {
        ungrouped_shape(rows, width)
    } else {
        grouped_shape(rows, width, n)
    };
    found.filter(|[rows, _]| outputs.is_none_or(|outputs| outputs == *rows))
}

/// The first two of all shapes that quanto stores as `rows` × `width`: one alone is certain.
fn first_two_shapes(rows: usize, width: usize) -> [Option<[usize; 2]>; 2] {
    // Up to the square root: the number of rows is bounded by the file, so this takes at most as
    // many steps as it has bytes.
    let pairs = (1..)
        .take_while(|n| n <= &(rows / n))
        .filter(|&n| rows.is_multiple_of(n));
    // Divisors come in pairs, except the square root.
    let divisors =
        pairs.flat_map(|n| std::iter::once(n).chain((n * n != rows).then_some(rows / n)));
    let mut all = ungrouped_shape(rows, width)
        .into_iter()
        .chain(divisors.filter_map(|n| grouped_shape(rows, width, n)));
    [all.next(), all.next()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(group_size(128), None);
        assert_eq!(
            [192, 160, 320, 4096, 200].map(group_size),
            [Some(96), Some(32), Some(64), Some(128), None]
        );
        // Rows of 64 that no cut of 12 into several explains, and groups that two matrices have.
        assert_eq!(first_two_shapes(12, 64), [Some([12, 64]), None]);
        assert!(first_two_shapes(75, 32)[1].is_some());
        assert_eq!(matching_shape(75, 32, Some(15), Some(160)), Some([15, 160]));
        assert_eq!(matching_shape(75, 32, Some(15), None), Some([15, 160]));
        assert_eq!(matching_shape(75, 32, Some(16), Some(160)), None);
        assert_eq!(matching_shape(75, 32, None, None), None);
        assert_eq!(first_two_shapes(3, 200), [Some([3, 200]), None]);
    }
}
