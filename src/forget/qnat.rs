//! QNAT: a tensor is its codes, block by block, with the scales behind them: F32, or double-quantized a byte each and
//! then their step.
//!
//! Layout: qlora-rs 1.3.0 `native.rs`, `write_tensor_data`.

use super::{Encode, Method, Put, Stored, Survey, Values, Weight};
use crate::containers::write::qnat::{block_for, data_len};
use crate::element::Out;
use crate::forget::seam::rows::grid_of_runs;
use crate::kernels::lethe::qnat::{encode, encode_scale, step};
use crate::kernels::remember::qnat::QnatRows;
use crate::scheme::Grid;
use crate::simd::dispatch;
use crate::{Dtype, Result};

/// NF4 in QNAT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Qnat {
    /// Whether scales are quantized too, which takes version 2.
    pub double: bool,
}

impl Method for Qnat {
    fn takes_empty(&self) -> bool {
        true
    }

    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        let n: usize = weight.shape.iter().product();
        block_for(n)
            .is_none()
            .then(|| format!("its {n} values are no whole number of blocks"))
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let block = block_for(rows * cols).unwrap_or(1);
        Ok(Box::new(Blocks {
            name: weight.name.to_owned(),
            rows,
            cols,
            block,
            double: self.double,
        }))
    }
}

/// A tensor in blocks.
struct Blocks {
    name: String,
    rows: usize,
    cols: usize,
    block: usize,
    double: bool,
}

impl Blocks {
    fn count(&self) -> usize {
        self.rows * self.cols / self.block
    }

    /// Bytes of a block's codes.
    fn width(&self) -> usize {
        self.block.div_ceil(2)
    }
}

impl Encode for Blocks {
    fn stored(&self) -> Vec<Stored> {
        let len = data_len(self.block, self.count(), self.double);
        vec![Stored {
            name: self.name.clone(),
            dtype: Dtype::U8,
            shape: vec![len as usize],
        }]
    }

    fn grid(&self) -> Grid {
        grid_of_runs(
            self.rows,
            self.cols,
            self.block,
            4.0 + 64.0 / self.block as f64,
        )
    }

    fn survey(&self) -> Option<Survey> {
        self.double.then_some(Survey::Max)
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let &Self { block, double, .. } = self;
        let scales_at = (self.count() * self.width()) as u64;
        // A tensor of zeros has scales of 1.
        let max = if values.survey == 0.0 {
            1.0
        } else {
            values.survey as f32
        };
        let step = step(max);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for (start, run) in values.tile.runs(self.cols) {
            codes.clear();
            scales.clear();
            encode(
                values.level,
                &values.values[run.clone()],
                block,
                &mut codes,
                &mut scales,
            );
            let first = start / block;
            put(0, (first * self.width()) as u64, &codes)?;
            if double {
                let bytes: Vec<u8> = scales
                    .iter()
                    .map(|&scale| encode_scale(scale, step))
                    .collect();
                put(0, scales_at + first as u64, &bytes)?;
                scales
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(scale, byte)| *scale = (f32::from(byte) - 128.0) * step);
            } else {
                put(
                    0,
                    scales_at + first as u64 * 4,
                    bytemuck::cast_slice(&scales),
                )?;
            }
            let zeros = vec![0.0; scales.len()];
            let decoded = QnatRows {
                codes: &codes,
                cols: block,
                scales: &scales,
                zeros: &zeros,
            };
            dispatch(values.level, &decoded, Out::F32(&mut back[run]));
        }
        if double && values.tile.is_first() {
            put(0, scales_at + self.count() as u64, &step.to_le_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(feature = "bnb")]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::{by_name, bytes_of, data, encode, values_of};
    use super::*;
    use crate::TargetDtype;
    use crate::containers::write::qnat::{QnatOutputTensor, layout};

    /// The real writer's files of these inputs, byte for byte, and what they decode to.
    #[test]
    fn files_of_the_real_writer() {
        let text = std::fs::read(data("qnat/index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let mut seen = [0, 0];
        for case in index["cases"].as_array().unwrap() {
            let ([t], Some(input)) = (
                &case["tensors"].as_array().unwrap()[..],
                case["input"].as_str(),
            ) else {
                continue;
            };
            let is = |key: &str| t[key].as_bool().unwrap();
            let (name, double) = (case["name"].as_str().unwrap(), is("double_quant"));
            let n = t["num_blocks"].as_u64().unwrap() * t["block_size"].as_u64().unwrap();
            let plain = !is("zero_points")
                && !is("per_channel")
                && case["model_name"] == "qlora-model"
                && case["model_type"] == "qlora";
            let version = if double { 2 } else { 1 };
            if !plain || name.contains("hostile") || case["version"] != version || n == 0 {
                continue;
            }
            let (input, file) = (
                crate::parse(data(&format!("qnat/{input}"))).unwrap(),
                data(&format!("qnat/{name}.qnat")),
            );
            let weight = input.tensors().next().unwrap();
            let (shape, values) = (weight.shape(), values_of(&weight));
            let block = t["block_size"].as_u64().unwrap() as usize;
            let (rows, cols) = (
                shape.iter().rev().skip(1).product(),
                shape.last().copied().unwrap_or(1),
            );
            let encoder = Blocks {
                name: weight.name().to_owned(),
                rows,
                cols,
                block,
                double,
            };
            let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
            let encoded = encode(&encoder, &values, f64::from(max));
            let model = crate::parse(&file).unwrap();
            let want = bytes_of(&by_name(&model)[weight.name()]);
            let stored = &encoded.stored[0].1;
            let zero_block = values
                .chunks(block)
                .any(|values| values.iter().all(|&x| x == 0.0));
            if double && zero_block && max > 0.0 && max < 1.0 {
                assert_ne!(
                    *stored, want,
                    "{name}: qlora-rs takes 1 for the largest scale"
                );
                continue;
            }
            assert_eq!(*stored, want, "{name}");
            let tensor = QnatOutputTensor {
                name: weight.name(),
                shape,
                block,
                blocks: encoder.count(),
            };
            let layout = layout(&[tensor], &HashMap::new(), double).unwrap();
            let mut whole = layout.pieces[0].1.clone();
            assert_eq!(layout.offsets, [whole.len() as u64]);
            whole.extend(stored);
            if case["compute_dtype"] == "F32" {
                assert_eq!(whole, std::fs::read(&file).unwrap(), "{name}");
            }
            let back =
                crate::parse_bytes(model.remember_to_bytes(TargetDtype::F32).unwrap()).unwrap();
            let back: Vec<u32> = back
                .tensors()
                .flat_map(|t| values_of(&t))
                .map(f32::to_bits)
                .collect();
            assert_eq!(encoded.back, back, "{name}");
            seen[usize::from(double)] += 1;
        }
        assert!(seen[0] >= 12 && seen[1] >= 4, "{seen:?}");
    }

    #[test]
    fn objections_say_why() {
        let objection = |shape: &[usize]| {
            Qnat { double: false }.objection(&Weight {
                name: "a",
                shape,
                dtype: TargetDtype::F32,
            })
        };
        assert_eq!(objection(&[3, 100]), None);
        assert_eq!(objection(&[7]), None);
        assert!(objection(&[9, 11]).unwrap().contains("99"));
    }
}
