//! Stacks of experts of mlx-lm: `M.lora_a` `[experts, rank, in]` and `M.lora_b` `[experts, out,
//! rank]` for a weight `[experts, out, in]`, which most models of transformers have apart.
//!
//! Source: mlx-lm 0.32.2 `tuner/lora.py` (`LoRASwitchLinear`).

use super::apart::JOINED;
use super::collect::Collector;
use super::matrices::{AdapterMatrix, PlacedMatrix, StackedRows};
use super::sorted::LoraTensors;
use super::tensor::AdapterTensor;
use crate::Result;
use crate::remember::layout::adapted::{AddedMatrix, ScaledProduct};
use crate::remember::names_of_experts;
use crate::remember::seam::wrong;

/// The factors of a stack.
struct StackedFactors {
    a: AdapterTensor,
    b: AdapterTensor,
    experts: usize,
    rows: usize,
    cols: usize,
    rank: usize,
    scale: f64,
}

impl StackedFactors {
    /// # Errors
    /// `Parse` if the factors do not fit each other.
    fn new((a, b): (AdapterTensor, AdapterTensor), scale: f64) -> Result<Self> {
        let (of_a, of_b) = (a.get(), b.get());
        match (of_a.shape(), of_b.shape()) {
            (&[experts, rank, cols], &[of_b, rows, columns])
                if (experts, rank) == (of_b, columns) && ![rank, rows, cols].contains(&0) =>
            {
                Ok(Self { experts, rows, cols, rank, scale, a: a.clone(), b: b.clone() })
            }
            (own, other) => {
                let what = format!(
                    "its shape is {own:?}, and that of `{}` {other:?}: they are no factors of a stack of experts",
                    of_b.name()
                );
                Err(wrong(&of_a, what))
            }
        }
    }

    /// The product of all experts, one below the other.
    fn all(&self) -> Result<ScaledProduct> {
        let &Self { experts, rows, cols, rank, scale, .. } = self;
        Ok(ScaledProduct {
            a: AdapterMatrix::boxed(self.a.clone(), [experts * rank, cols], false)?,
            b: AdapterMatrix::boxed(self.b.clone(), [experts * rows, rank], false)?,
            rank,
            scale,
            matrix_rows: rows,
        })
    }

    /// The product of expert `number`.
    fn one(&self, number: usize) -> Result<ScaledProduct> {
        let ScaledProduct { a, b, .. } = self.all()?;
        Ok(ScaledProduct {
            a: PlacedMatrix::boxed(a, (number * self.rank, 0), self.rank),
            b: PlacedMatrix::boxed(b, (number * self.rows, 0), self.rows),
            rank: self.rank,
            scale: self.scale,
            matrix_rows: usize::MAX,
        })
    }
}

impl Collector<'_, '_> {
    /// The parameter of transformers in which the rows of `stack` are: its name, which part of each of
    /// its matrices they are, and of how many.
    fn joined_parameter(&self, stack: &str) -> Option<(String, usize, usize)> {
        let mut names = names_of_experts(stack);
        names.find_map(|(before, after)| {
            let own = after.strip_suffix(".weight")?;
            JOINED.iter().find_map(|(joined, parts)| {
                let at = parts.iter().position(|part| *part == own)?;
                let name = format!("{before}.{joined}");
                let is_there = self.names.contains_key(&name);
                is_there.then_some((name, at, parts.len()))
            })
        })
    }

    /// The products of a stack whose rows are part number `at` of `parts` of each matrix of the
    /// parameter `name`, `[experts, parts * out, in]`.
    fn add_joined(
        &mut self,
        factors: &StackedFactors,
        (name, at, parts): (&str, usize, usize),
    ) -> Result<()> {
        let &StackedFactors { experts, rows, cols, .. } = factors;
        let t = factors.a.get();
        let (item, shape) = self.item(name, &t)?;
        let height = rows.saturating_mul(parts);
        if shape != [experts, height, cols] {
            let whole = [experts, height, cols];
            let what = format!("it is of a stack {whole:?}, and `{name}` is {shape:?}");
            return Err(wrong(&t, what));
        }
        if height == cols {
            let what = format!(
                "`{name}` has square matrices, and nothing tells whether their rows are outputs; merge it into the model of mlx-lm that it was trained for"
            );
            return Err(wrong(&t, what));
        }
        let product = factors.all()?;
        let b = StackedRows { inner: product.b, rows, height, first: at * rows };
        let product = ScaledProduct { b: Box::new(b), matrix_rows: height, ..product };
        let size = [experts * height, cols];
        self.add(item, (size, AddedMatrix::LowRank(product)), &t)?;
        self.require_alone(item, &t)
    }

    /// The products of a stack of experts, of which `module` is the name in MLX.
    pub(super) fn add_stack(
        &mut self,
        module: &str,
        tensors: LoraTensors,
        (a, b): (AdapterTensor, AdapterTensor),
    ) -> Result<()> {
        let t = a.get();
        let scale = tensors.scale.unwrap_or(1.0) * self.adapter.weight;
        let factors = StackedFactors::new((a.clone(), b), scale)?;
        let stack = format!("{module}.weight");
        let size = [factors.rows, factors.cols];
        if !self.names.contains_key(&stack) {
            let has_first = |(before, after): &(String, String)| {
                self.names.contains_key(&format!("{before}.0.{after}"))
            };
            if let Some((before, after)) = names_of_experts(&stack).find(has_first) {
                for expert in 0..factors.experts {
                    let name = format!("{before}.{expert}.{after}");
                    let (item, shape) = self.item(&name, &t)?;
                    if shape != size {
                        return Err(wrong(
                            &t,
                            format!("it makes {size:?}, and `{name}` is {shape:?}"),
                        ));
                    }
                    self.add(item, (size, AddedMatrix::LowRank(factors.one(expert)?)), &t)?;
                    self.require_alone(item, &t)?;
                }
                let next = format!("{before}.{}.{after}", factors.experts);
                return match self.names.contains_key(&next) {
                    true => Err(wrong(&t, format!("the model has more experts, such as `{next}`"))),
                    false => Ok(()),
                };
            }
        }
        if let Some((name, at, parts)) = self.joined_parameter(&stack) {
            return self.add_joined(&factors, (&name, at, parts));
        }
        let (item, shape) = self.item(&stack, &t)?;
        let whole = [factors.experts, factors.rows, factors.cols];
        if shape != whole {
            return Err(wrong(&t, format!("it makes {whole:?}, and `{stack}` is {shape:?}")));
        }
        // The weight has as many values, so that none of these overflows.
        let size = [factors.experts * factors.rows, factors.cols];
        self.add(item, (size, AddedMatrix::LowRank(factors.all()?)), &t)?;
        self.require_alone(item, &t)
    }
}
