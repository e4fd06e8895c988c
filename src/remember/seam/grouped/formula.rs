//! The formulas by which codes and the numbers of their groups become weights. A formula owns its
//! operands.

use crate::TargetDtype;
use crate::remember::kernels::grouped::Formula;
use crate::remember::seam::scale_matrix::ScaleMatrix;

/// How code values `v` and the scale `s` of their group become weights, with what the formula needs
/// besides.
pub(crate) enum GroupFormula<'m> {
    /// `v * s`.
    Scale,
    /// `v / s`.
    Divide,
    /// `(v - z) * s`, with zero points `z`.
    ShiftScale(Box<GroupOffsets<'m>>),
    /// `v * s + b`, with offsets `b`.
    ScaleShift(Box<GroupOffsets<'m>>),
    /// `v * s + b`, rounded once.
    FusedScaleShift(Box<GroupOffsets<'m>>),
    /// `int8(v * s) * b`, with second scales `b`: the product is rounded to an integer of eight
    /// bits.
    ScaleToInt8(Box<GroupOffsets<'m>>),
}

impl<'m> GroupFormula<'m> {
    /// The zero points or offsets, unless the formula is a single operation.
    pub(super) fn offsets(&self) -> Option<&GroupOffsets<'m>> {
        match self {
            Self::Scale | Self::Divide => None,
            Self::ShiftScale(offsets)
            | Self::ScaleShift(offsets)
            | Self::FusedScaleShift(offsets)
            | Self::ScaleToInt8(offsets) => Some(offsets),
        }
    }

    pub(super) fn compute(&self) -> Option<&ComputeDtype<'m>> {
        self.offsets()?.compute.as_ref()
    }

    pub(super) fn rounded(&self) -> Option<&RoundedMatrices<'m>> {
        self.compute()?.rounded.as_deref()
    }

    /// The kernel's name for the formula; its operands come from the buffers of a tile.
    pub(super) fn operation(&self) -> Formula {
        match self {
            Self::Scale => Formula::Scale,
            Self::Divide => Formula::Divide,
            Self::ShiftScale(_) => Formula::ShiftScale,
            Self::ScaleShift(_) => Formula::ScaleShift,
            Self::FusedScaleShift(_) => Formula::FusedScaleShift,
            Self::ScaleToInt8(_) => Formula::ScaleToInt8,
        }
    }
}

/// The second operand of a formula of two operations: a zero point or an offset for each scale.
pub(crate) struct GroupOffsets<'m> {
    pub matrix: Box<dyn ScaleMatrix + 'm>,
    /// Only formulas of two operations have an intermediate result that can be rounded, so this is
    /// not a field of the weight. `None` if the library computes in F32.
    pub compute: Option<ComputeDtype<'m>>,
}

impl<'m> GroupOffsets<'m> {
    /// Zero points or offsets of a library that computes in F32.
    ///
    /// Boxed: most weights have none, and a model can have hundreds of thousands of weights.
    pub(crate) fn new(matrix: Box<dyn ScaleMatrix + 'm>) -> Box<Self> {
        Box::new(Self { matrix, compute: None })
    }

    /// Sets the dtype in which the library computes.
    pub(crate) fn computed_in(mut self: Box<Self>, dtype: Option<TargetDtype>) -> Box<Self> {
        self.compute = dtype.map(ComputeDtype::new);
        self
    }
}

/// The dtype in which a library computes. An output of this dtype equals the library's bit for bit
/// only if the first operation is rounded to it; any other output is computed in F32.
pub(crate) struct ComputeDtype<'m> {
    pub dtype: TargetDtype,
    /// Scales and offsets as the library has them in `dtype`, if rounding those in F32 gives other
    /// values. So it is where they are quantized themselves, and decoded in `dtype`.
    pub rounded: Option<Box<RoundedMatrices<'m>>>,
}

impl ComputeDtype<'_> {
    /// A compute dtype in which scales and offsets have the same values as in F32.
    pub(crate) fn new(dtype: TargetDtype) -> Self {
        Self { dtype, rounded: None }
    }
}

/// Scales and offsets for outputs of the compute dtype; both of the size of those for F32.
pub(crate) struct RoundedMatrices<'m> {
    pub scales: Box<dyn ScaleMatrix + 'm>,
    pub offsets: Box<dyn ScaleMatrix + 'm>,
}
