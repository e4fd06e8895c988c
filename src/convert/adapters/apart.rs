//! Experts that are stored apart, `M.0.gate_proj.weight` and so on, and that transformers joins to
//! one parameter `M.gate_up_proj` `[experts, 2 * out, in]`, the rows of `gate_proj` before those of
//! `up_proj`, or `M.down_proj` `[experts, out, in]`.
//!
//! Source: transformers 5.24.0 `conversion_mapping.py` (`MergeModulelist(dim=0),
//! Concatenate(dim=1)`).

use super::factors::ProductSize;
use super::matrices::{AdapterMatrix, PlacedMatrix};
use super::tensor::AdapterTensor;
use crate::Result;
use crate::remember::layout::adapted::{AddedMatrix, ScaledProduct};

/// The last parts of the names of parameters, and of the modules that they join.
pub(super) const JOINED: [(&str, &[&str]); 2] =
    [("gate_up_proj", &["gate_proj", "up_proj"]), ("down_proj", &["down_proj"])];

/// A parameter that joins the weights of experts.
#[derive(Clone)]
pub(super) struct ExpertsApart {
    /// Its name, which no stored tensor has.
    pub name: String,
    module: String,
    parts: &'static [&'static str],
    experts: usize,
    /// Rows and columns of each weight.
    size: [usize; 2],
}

/// The parameters that join the experts of `module`.
pub(super) fn find(
    module: &str,
    shape_of: &dyn Fn(&str) -> Option<Vec<usize>>,
) -> Vec<ExpertsApart> {
    let found = JOINED.iter().filter_map(|&(last, parts)| {
        let name = format!("{module}.{last}");
        let shape = |expert, part: &str| shape_of(&weight_name(module, expert, part));
        let first = shape(0, parts[0]);
        let size = <[usize; 2]>::try_from(first?).ok()?;
        // The weight of an expert that is missing, or of another size, makes the adapter one that
        // does not fit.
        let has_all = |expert: &usize| {
            let mut shapes = parts.iter().map(|part| shape(*expert, part));
            shapes.all(|shape| shape.is_some_and(|shape| shape == size))
        };
        let experts = (0..).take_while(has_all).count();
        (experts > 0 && shape_of(&name).is_none()).then(|| ExpertsApart {
            name,
            module: module.to_owned(),
            parts,
            experts,
            size,
        })
    });
    found.collect()
}

fn weight_name(module: &str, expert: usize, part: &str) -> String {
    format!("{module}.{expert}.{part}.weight")
}

impl ExpertsApart {
    /// The shape of the parameter.
    pub(super) fn shape(&self) -> [usize; 3] {
        let [rows, cols] = self.size;
        [self.experts, rows * self.parts.len(), cols]
    }

    /// The weights, each with its size and its part of the product of `a` and `b`, whose size is
    /// `product`.
    ///
    /// # Errors
    /// `Parse` if a factor is not F32, F16 or BF16.
    pub(super) fn products(
        &self,
        (a, b): (&AdapterTensor, &AdapterTensor),
        product: ProductSize,
        scale: f64,
    ) -> Result<Vec<(String, [usize; 2], AddedMatrix)>> {
        let ([height, cols], rank) = (self.size, product.rank);
        let mut products = Vec::with_capacity(self.experts * self.parts.len());
        for expert in 0..self.experts {
            for (i, part) in self.parts.iter().enumerate() {
                let all_ranks = [self.experts * rank, cols];
                let a = AdapterMatrix::boxed(a.clone(), all_ranks, false)?;
                let of_expert = [product.rows, rank];
                let b = AdapterMatrix::interleaved(b.clone(), self.experts, of_expert, false)?;
                let scaled = ScaledProduct {
                    a: PlacedMatrix::boxed(a, (expert * rank, 0), rank),
                    b: PlacedMatrix::boxed(b, (expert * product.rows + i * height, 0), height),
                    rank,
                    scale,
                    matrix_rows: height,
                };
                let name = weight_name(&self.module, expert, part);
                products.push((name, self.size, AddedMatrix::LowRank(scaled)));
            }
        }
        Ok(products)
    }
}
