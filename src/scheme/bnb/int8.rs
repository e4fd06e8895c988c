//! BitsAndBytes LLM.int8(): `P.weight` I8 `[out, in]`, `P.SCB` F32 `[out]`, the largest magnitudes of the rows, and
//! `P.weight_format`.
//!
//! Layout: bitsandbytes `nn.Linear8bitLt._save_to_state_dict`.

use std::ops::Range;

use crate::config::QuantMethod;
use crate::containers::model::{Part, Tensor};
use crate::element::Out;
use crate::kernels::remember::bnb::Int8Rows;
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::{
    Buffers, Decode, Floats, Grid, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
    refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(in crate::scheme) struct BnbInt8;

static IDENTITY: Identity = Identity {
    name: "BitsAndBytes INT8",
    methods: &[QuantMethod::BitsAndBytes],
    codes: &[],
    companions: &[
        (Ends(".SCB"), TensorRole::Scale),
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
        let Some(scb) = all.at(base, "SCB") else {
            return Ok(None);
        };
        let &[n, k] = t.shape() else {
            return Err(wrong(t, "an LLM.int8() weight has two dimensions"));
        };
        if scb.dtype() != Dtype::F32 || scb.elements() != n {
            return Err(wrong(
                &scb,
                format!("the scales of `{}` are F32 [{n}]", t.name()),
            ));
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
        let decoder = Box::new(BnbInt8Weight {
            codes: t.part(),
            scb: Floats::ieee(&scb)?,
            n,
            k,
        });
        let (name, shape) = (t.name(), t.shape());
        Ok(Some(Group::new(
            name,
            shape,
            QuantScheme::BnbInt8,
            parts,
            decoder,
        )))
    }
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
        Grid {
            rows: self.n,
            cols: self.k,
            row_align: 1,
            col_align: 1,
            load_bits,
            transposed: None,
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let (rows, cols) = (tile.rows.clone(), tile.cols.clone());
        buffers.bytes.load(&self.codes, self.k, rows, cols)?;
        // The scales are one row of `n` numbers, of which the tile's rows are columns.
        buffers.scales.clear();
        self.scb.extend(
            self.n,
            0..1,
            tile.rows.clone(),
            &mut buffers.staging,
            &mut buffers.scales,
        )
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
        dispatch(
            level,
            &Int8Rows {
                codes,
                cols,
                scb: &buffers.scales[first..first + count],
            },
            out,
        );
    }
}
