//! BitsAndBytes LLM.int8(): `P.weight` I8 `[out, in]`, `P.SCB` F32 `[out]`, the largest magnitudes
//! of the rows, and `P.weight_format`. GPTQModel calls them `P.weight_scb`, and has an order of
//! operations of its own.
//!
//! Layout: bitsandbytes `nn.Linear8bitLt._save_to_state_dict`; gptqmodel
//! `nn_modules/qlinear/bitsandbytes.py` (`_dequantize_int8_weight`).

use std::ops::Range;

use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::bnb::Int8Rows;
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::{NestedOp, NestedScales, Ones};
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
    refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(in crate::remember) struct BnbInt8;

static IDENTITY: Identity = Identity {
    name: "BitsAndBytes INT8",
    over: &[],
    methods: &[QuantMethod::BitsAndBytes],
    codes: &[],
    companions: &[
        (Ends(".SCB"), TensorRole::Scale),
        (Ends(".weight_scb"), TensorRole::Scale),
        (Ends(".weight_format"), TensorRole::QuantState),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for BnbInt8 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::BnbInt8
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = t
            .name()
            .strip_suffix("weight")
            .filter(|_| t.dtype() == Dtype::I8)
        else {
            return Ok(None);
        };
        let of_gptqmodel = all.at(base, "weight_scb");
        let Some(scb) = all.at(base, "SCB").or(of_gptqmodel) else {
            return Ok(None);
        };
        let &[n, k] = t.shape() else {
            return Err(wrong(t, "an LLM.int8() weight has two dimensions"));
        };
        if scb.dtype() != Dtype::F32 || scb.elements() != n {
            return Err(wrong(&scb, format!("the scales of `{}` are F32 [{n}]", t.name())));
        }
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scb)];
        // A format other than 0 (row-major) is a tiling for GPU kernels.
        if let Some(format) = all.at(base, "weight_format") {
            if format.part().is_readable() && format.part().read_small(8)?.iter().any(|&b| b != 0) {
                return Err(refused(
                    t,
                    "BitsAndBytes INT8",
                    "its weight_format is a tiling for GPUs; only row-major (0) is decoded",
                ));
            }
            parts.push((TensorRole::QuantState, format));
        }
        let floats = Floats::ieee(&scb)?;
        let decoder: Box<dyn Decode> = match of_gptqmodel {
            Some(of_gptqmodel) if of_gptqmodel.name() == scb.name() => {
                Box::new(divided_rows(t, floats, [n, k]))
            }
            _ => Box::new(BnbInt8Weight { codes: t.part(), scb: floats, n, k }),
        };
        let (name, shape) = (t.name(), t.shape());
        Ok(Some(Group::new(name, shape, QuantScheme::BnbInt8, parts, decoder)))
    }
}

/// The decoder of GPTQModel: `q * (scb / 127)`.
fn divided_rows<'m>(t: &Tensor<'m>, scb: Floats<'m>, [n, k]: [usize; 2]) -> Grouped<'m> {
    let codes = Codes::Rows { part: t.part(), row_bytes: k };
    let scales = Box::new(NestedScales {
        inner: Box::new(Ones),
        outer: scb,
        count: n,
        rows_each: 1,
        op: NestedOp::Multiply,
        unit: 127.0,
    });
    let code_format = CodeFormat::Int(Int::signed(8));
    let grid = row_groups(k, k);
    Grouped::scaled(codes, 8, code_format, [n, k], grid, scales)
}

/// Decoder of an LLM.int8() weight of `n` rows and `k` columns.
struct BnbInt8Weight<'m> {
    codes: Part<'m>,
    scb: Floats<'m>,
    n: usize,
    k: usize,
}

impl Decode for BnbInt8Weight<'_> {
    fn grid(&self) -> Grid {
        let load_bits = 8.0 + 64.0 / self.k.max(1) as f64;
        Grid { rows: self.n, cols: self.k, row_align: 1, col_align: 1, load_bits, transposed: None }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let (rows, cols) = (tile.rows.clone(), tile.cols.clone());
        buffers.bytes.load(&self.codes, self.k, rows, cols)?;
        // The scales are one row of `n` numbers, of which the tile's rows are columns.
        buffers.scales.clear();
        self.scb
            .extend(self.n, 0..1, tile.rows.clone(), &mut buffers.staging, &mut buffers.scales)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (cols, first, count) = (tile.cols.len(), rows.start - tile.rows.start, rows.len());
        let codes = &buffers.bytes[first * cols..(first + count) * cols];
        dispatch(level, &Int8Rows { codes, cols, scb: &buffers.scales[first..first + count] }, out);
    }
}
