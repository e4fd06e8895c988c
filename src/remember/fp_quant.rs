//! FP-Quant: MXFP4 and NVFP4 codes of weights whose columns were rotated in groups, `P.qweight` U8
//! `[out, in / 2]`, low nibble first, with `P.scales` U8 and `P.weight_global_scale`; or the
//! rotated weight as floats, `P.dqweight` (pseudo-quantization). `P.forward_hadamard_matrix` is the
//! matrix of the rotation. Models in training have plain weights beside the same tensors.
//!
//! Formula: qutlass `tests/mxfp4_test.py` (`_dq_fp4`); fp_quant `FPQuant4x16NoMasterFn`, which
//! multiplies the rotated input by the codes' values. Layout: fp_quant `FPQuantLinear`.

mod matrix;

use self::matrix::columns;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::E2M1;
use crate::remember::kernels::hadamard::StoredHadamard;
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::layout::hadamard::HadamardRotated;
use crate::remember::mxfp4;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Decode, Floats, Granularity, Group, Identity, Index, PlainFloats, QuantScheme,
    Scheme, TensorRole, base_of, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct FpQuant;

/// Name in listings.
const FAMILY: &str = "FP-Quant";

/// Columns that the library rotates together (`validate_config`).
const ROTATIONS: [usize; 4] = [16, 32, 64, 128];

/// Rows of scales are padded to a multiple of this (qutlass `get_padded_shape_mx`).
const SCALE_ROWS: usize = 128;

/// Codes are read as this part of their values, so that their products with the largest scale are
/// finite in F32.
const UNIT: f32 = 0.125;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["GPTQ"],
    methods: &[QuantMethod::FpQuant],
    codes: &[".qweight", ".dqweight"],
    companions: &[
        (Ends(".weight_global_scale"), TensorRole::Scale),
        (Ends(".forward_hadamard_matrix"), TensorRole::QuantMap),
        (Ends(".backward_hadamard_matrix"), TensorRole::QuantMap),
    ],
    optional: &[],
    activations: &["act_global_scale"],
    markers: &[],
    sidecars: &[],
    container: None,
};

/// What a layer holds, by the last part of the name of its weight (`FPQuantLinear.pre_forward`).
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Codes,
    /// The rotated weight in floats, rounded to the values of codes.
    Rotated,
    /// The weight, which the library quantizes in each step of a training.
    Master,
}

/// Suffixes of the weights of each form, and the config's `pseudoquantization` and
/// `store_master_weights`.
const FORMS: &[(&str, Form, Option<bool>, bool)] = &[
    ("qweight", Form::Codes, Some(false), false),
    ("dqweight", Form::Rotated, Some(true), false),
    ("weight", Form::Master, None, true),
];

impl Scheme for FpQuant {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let found = FORMS
            .iter()
            .find_map(|&(part, form, ..)| Some((base_of(t.name(), part)?, form)));
        let Some((base, form)) = found else {
            return Ok(None);
        };
        let matrix = all.at(base, "forward_hadamard_matrix");
        let is_its = all.config.quant_method() == Some(&QuantMethod::FpQuant);
        if matrix.is_none() && !(is_its && form != Form::Master) {
            return Ok(None);
        }
        if t.elements() == 0 && FORMS.iter().any(|(part, ..)| has_values(base, part, all)) {
            return Ok(None);
        }
        check_form(t, form, all)?;
        let layer = FpQuantLayer {
            t: *t,
            base,
            matrix: all.need(t, base, "forward_hadamard_matrix")?,
            global: all.at(base, "weight_global_scale"),
            all,
        };
        match form {
            Form::Codes => layer.codes(),
            Form::Rotated => layer.rotated(),
            Form::Master => layer.master(),
        }
        .map(Some)
    }
}

fn has_values(base: &str, part: &str, all: &Index<'_>) -> bool {
    all.at(base, part).is_some_and(|t| t.elements() > 0)
}

/// Checks that the config, if it is FP-Quant's, says of layers what `t` is.
fn check_form(t: &Tensor<'_>, form: Form, all: &Index<'_>) -> Result<()> {
    let says = |key: &str, want: bool| {
        let found = all.config.flag(key).filter(|&found| found != want);
        found.map(|found| wrong(t, format!("the config says `{key}: {found}`")))
    };
    let row = FORMS.iter().find(|row| row.1 == form);
    let error = row.and_then(|&(_, _, pseudo, master)| {
        says("store_master_weights", master)
            .or_else(|| pseudo.and_then(|pseudo| says("pseudoquantization", pseudo)))
    });
    error.map_or(Ok(()), Err)
}

/// A layer that is being claimed.
struct FpQuantLayer<'a, 'm> {
    t: Tensor<'m>,
    /// The name of its weight without the last part.
    base: &'m str,
    matrix: Tensor<'m>,
    global: Option<Tensor<'m>>,
    all: &'a Index<'m>,
}

impl<'m> FpQuantLayer<'_, 'm> {
    fn codes(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let &[rows, bytes] = t.shape() else {
            return Err(wrong(t, "packed codes have two dimensions"));
        };
        if t.dtype() != Dtype::U8 {
            return Err(wrong(t, "packed codes are U8"));
        }
        let Some(cols) = bytes.checked_mul(2) else {
            return Err(wrong(t, "a row has more codes than any memory"));
        };
        let scales = self.all.need(t, self.base, "scales")?;
        let (block, floats) = self.scales(&scales, rows, cols)?;
        let decoder = Grouped::scaled(
            Codes::Rows { part: t.part(), row_bytes: bytes },
            4,
            CodeFormat::E2M1(E2M1 { factor: UNIT, plain_zero: false }),
            [rows, cols],
            row_groups(cols, block),
            Box::new(Matrix { floats, cols: cols / block }),
        );
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scales)];
        parts.extend(self.parts());
        let mut stored = self.stored(cols, self.divisor(block)?)?;
        stored.matrix.entry /= f64::from(UNIT);
        Ok(self.group([rows, cols], block, parts, Box::new(decoder), stored))
    }

    fn rotated(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let (&[rows, cols], Some(decoder)) = (t.shape(), PlainFloats::of(t)) else {
            return Err(wrong(t, "a rotated weight is a matrix of floats"));
        };
        let block = match self.forward_dtype() {
            Some("mxfp4") => mxfp4::BLOCK,
            Some("nvfp4") => BLOCK,
            _ => {
                let what = "only its config (quant_method `fp_quant`) tells which codes it was rounded to, and there is none";
                return Err(refused(t, FAMILY, what));
            }
        };
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(self.parts());
        // The library has divided by the global scale.
        let stored = self.stored(cols, 1.0)?;
        Ok(self.group([rows, cols], block, parts, Box::new(decoder), stored))
    }

    fn master(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let Some(decoder) = PlainFloats::of(t) else {
            return Err(wrong(t, "beside a Hadamard matrix a weight is of floats"));
        };
        if self.all.config.flag("store_master_weights") != Some(true) {
            let what = "no config with `store_master_weights` tells that it is not rotated";
            return Err(refused(t, FAMILY, what));
        }
        let mut parts = vec![(TensorRole::Passthrough, *t)];
        parts.extend(self.parts());
        let (name, shape) = (t.name(), t.shape());
        let scheme = QuantScheme::Unquantized;
        Ok(Group {
            keeps: TargetDtype::of(t.dtype()),
            ..Group::new(name, shape, scheme, parts, Box::new(decoder))
        })
    }

    /// The tensors that a layer of every form has.
    fn parts(&self) -> Vec<(TensorRole, Tensor<'m>)> {
        let backward = self.all.at(self.base, "backward_hadamard_matrix");
        let matrices = [Some(self.matrix), backward].into_iter().flatten();
        let matrices = matrices.map(|t| (TensorRole::QuantMap, t));
        // transformers gives a layer that it has loaded such tensors for the other forms, and saves
        // them (`FpQuantDeserialize`).
        let empty = ["weight", "qweight", "dqweight", "scales"].into_iter();
        let empty = empty.filter_map(|part| self.all.at(self.base, part));
        let empty = empty.filter(|t| t.elements() == 0);
        let empty = empty.map(|t| (TensorRole::QuantState, t));
        let global = self.global.map(|t| (TensorRole::Scale, t));
        matrices.chain(global).chain(empty).collect()
    }

    /// What the products of codes in blocks of `block` are divided by: the global scale. fp_quant
    /// before 0.2 stores none, and divides the product of two matrices by 9
    /// (`FPQuant4x16NoMasterFn`), for the scales of both are those of values times 3.
    ///
    /// # Errors
    /// The global scale is missing, and nothing says that it is 3.
    fn divisor(&self, block: usize) -> Result<f64> {
        let config = &self.all.config;
        let method = config
            .text(&["forward_method"])
            .map_or("abs_max", |(method, _)| method);
        let is_named = config.quant_method() == Some(&QuantMethod::FpQuant);
        match &self.global {
            Some(global) => read_global(global),
            None if is_named && block == mxfp4::BLOCK && method == "abs_max" => Ok(3.0),
            None => {
                let missing = self.all.need(&self.t, self.base, "weight_global_scale");
                missing.and_then(|global| read_global(&global))
            }
        }
    }

    fn forward_dtype(&self) -> Option<&str> {
        self.all
            .config
            .text(&["forward_dtype"])
            .map(|(text, _)| text)
    }

    /// Values that share a scale, and the scales.
    ///
    /// # Errors
    /// Scales are not one for each block of a row, or of other blocks than the config says.
    fn scales(&self, scales: &Tensor<'m>, rows: usize, cols: usize) -> Result<(usize, Floats<'m>)> {
        let t = &self.t;
        let misfit = |what: String| {
            let (name, shape) = (scales.name(), scales.shape());
            wrong(t, format!("its scales `{name}` {shape:?} {what}"))
        };
        let (&[height, width], true) = (scales.shape(), scales.dtype() == Dtype::U8) else {
            return Err(misfit("are not a matrix of U8".to_owned()));
        };
        let blocks = [(mxfp4::BLOCK, "mxfp4"), (BLOCK, "nvfp4")];
        let found = blocks
            .iter()
            .find(|(block, _)| cols > 0 && width.checked_mul(*block) == Some(cols));
        let Some(&(block, name)) = found else {
            // The library's kernel writes rows of `in / 32` or `in / 16` scales to such a matrix,
            // and its products read others.
            return Err(misfit(format!("are not one for each 32 or 16 of {cols} inputs")));
        };
        if height != rows && Some(height) != rows.checked_next_multiple_of(SCALE_ROWS) {
            return Err(misfit(format!("are not those of {rows} rows")));
        }
        if let Some(said) = self.forward_dtype().filter(|&said| said != name) {
            return Err(misfit(format!("are those of {name}, and the config says `{said}`")));
        }
        let floats = if block == BLOCK {
            Floats::fp8(scales)?
        } else {
            Floats::new(scales)?
        };
        Ok((block, floats))
    }

    /// The rotation of rows of `cols` values, whose products are divided by `divisor`.
    fn stored(&self, cols: usize, divisor: f64) -> Result<Rotation> {
        let (t, matrix) = (&self.t, &self.matrix);
        let group = matrix.shape().first().copied().unwrap_or(0);
        if !ROTATIONS.contains(&group) || matrix.shape() != [group, group] {
            let what = "rotations of 16, 32, 64 and 128 columns are decoded";
            return Err(refused(matrix, FAMILY, what));
        }
        if !cols.is_multiple_of(group) {
            let what = format!("its {cols} inputs are not groups of {group} that are rotated");
            return Err(wrong(t, what));
        }
        let config = &self.all.config;
        if let Some((said, place)) = config
            .at(self.base.trim_end_matches('.'))
            .int(&["hadamard_group_size"])
            && usize::try_from(said) != Ok(group)
        {
            let what = format!("{place} says rotations of {said} columns, and it has {group}");
            return Err(wrong(matrix, what));
        }
        let mut values = Vec::with_capacity(group * group);
        Floats::ieee(matrix)?.extend(group, 0..group, 0..group, &mut Vec::new(), &mut values)?;
        let Some((columns, entry)) = columns(&values, group) else {
            let what = "it is neither a Hadamard matrix, nor one with other columns first, nor the identity";
            return Err(refused(matrix, FAMILY, what));
        };
        let matrix = StoredHadamard { columns, entry: f64::from(entry), divisor };
        Ok(Rotation { matrix, group })
    }

    fn group(
        &self,
        [rows, cols]: [usize; 2],
        block: usize,
        parts: Vec<(TensorRole, Tensor<'m>)>,
        rotated: Box<dyn Decode + 'm>,
        rotation: Rotation,
    ) -> Group<'m> {
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: match block {
                BLOCK => CodeType::Nvfp4,
                _ => CodeType::Mxfp4,
            },
            scales: Granularity::Group(block),
        };
        let decoder =
            HadamardRotated { rotated, group: rotation.group, stored: Some(rotation.matrix) };
        let name = format!("{}weight", self.base);
        Group::new(name, vec![rows, cols], scheme, parts, Box::new(decoder))
    }
}

/// A matrix of `group` rows.
struct Rotation {
    matrix: StoredHadamard,
    group: usize,
}

/// The one value of the scale `global`.
fn read_global(global: &Tensor<'_>) -> Result<f64> {
    if global.elements() != 1 {
        return Err(wrong(global, "a weight has one global scale"));
    }
    let mut value = Vec::with_capacity(1);
    Floats::ieee(global)?.extend(1, 0..1, 0..1, &mut Vec::new(), &mut value)?;
    value
        .first()
        .map(|&value| f64::from(value))
        .ok_or_else(|| wrong(global, "it has no value"))
}
