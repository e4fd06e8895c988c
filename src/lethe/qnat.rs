//! QNAT, the container of qlora-rs: a tensor is one run of bytes, its NF4 codes block by block and
//! its scales behind them.
//!
//! - Plain: codes, then an F32 scale for each block.
//! - Double-quantized: codes, then a byte for each scale, then the F32 step of those bytes. The
//!   step depends on the largest scale, which is the largest magnitude of the tensor and takes a
//!   survey pass.
//!
//! A block of an odd size is padded to whole bytes of codes. The offsets of both sections follow
//! from the number of blocks, so that tiles write to them independently.
//!
//! Layout: qlora-rs 1.3.0 `native.rs`, `write_tensor_data`.

use zerocopy::IntoBytes;

use super::{Encode, EncodeBuffers, Method, Put, StoredTensor, Survey, TileValues, WeightInfo};
use crate::element::Out;
use crate::lethe::kernels::qnat::{encode, encode_scale, step};
use crate::lethe::seam::rows::flat_block_grid;
use crate::remember::Grid;
use crate::remember::kernels::qnat::QnatRows;
use crate::simd::dispatch;
use crate::write::qnat::{block_for, data_len};
use crate::{Dtype, Result};

/// NF4 of qlora-rs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Qnat {
    /// Whether the scales are quantized, too, which version 2 of the container can hold.
    pub double_quant: bool,
}

impl Method for Qnat {
    /// The container has no other kind of tensor, so one without values is stored as an encoded
    /// tensor of no blocks.
    fn takes_empty(&self) -> bool {
        true
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        // The parser has checked that the product does not overflow.
        let n: usize = weight.shape.iter().product();
        block_for(n)
            .is_none()
            .then(|| format!("its {n} values are no whole number of blocks"))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        // No block fits an empty tensor, and 1 keeps the divisions below defined.
        let block = block_for(rows * cols).unwrap_or(1);
        Ok(Box::new(QnatEncoder {
            name: weight.name.to_owned(),
            rows,
            cols,
            block,
            double_quant: self.double_quant,
        }))
    }
}

/// Encodes one tensor to NF4.
struct QnatEncoder {
    name: String,
    rows: usize,
    cols: usize,
    block: usize,
    double_quant: bool,
}

impl QnatEncoder {
    fn block_count(&self) -> usize {
        self.rows * self.cols / self.block
    }

    /// Bytes of the codes of a block.
    fn block_bytes(&self) -> usize {
        self.block.div_ceil(2)
    }
}

impl Encode for QnatEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        let len = data_len(self.block, self.block_count(), self.double_quant);
        vec![StoredTensor { name: self.name.clone(), dtype: Dtype::U8, shape: vec![len as usize] }]
    }

    fn grid(&self) -> Grid {
        flat_block_grid(self.rows, self.cols, self.block, 4.0 + 64.0 / self.block as f64)
    }

    fn survey(&self) -> Option<Survey> {
        self.double_quant.then_some(Survey::MaxAbs)
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        _: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let &Self { block, double_quant, .. } = self;
        let scales_at = (self.block_count() * self.block_bytes()) as u64;
        // The library gives a block of zeros the scale 1, which is the largest scale if all values
        // are zeros.
        let max = if values.survey == 0.0 {
            1.0
        } else {
            values.survey as f32
        };
        // The step is the largest scale over 127, which is known only after the survey.
        let step = step(max);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for (start, run) in values.tile.runs(self.cols) {
            codes.clear();
            scales.clear();
            encode(values.level, &values.values[run.clone()], block, &mut codes, &mut scales);
            let first = start / block;
            put(0, (first * self.block_bytes()) as u64, &codes)?;
            if double_quant {
                let bytes: Vec<u8> = scales
                    .iter()
                    .map(|&scale| encode_scale(scale, step))
                    .collect();
                put(0, scales_at + first as u64, &bytes)?;
                // Decoding has the stepped scales, and `back` must be what decoding gives.
                scales
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(scale, byte)| *scale = (f32::from(byte) - 128.0) * step);
            } else {
                put(0, scales_at + first as u64 * 4, scales.as_bytes())?;
            }
            // The plain format has no zero points, and the decoder adds them.
            let zeros = vec![0.0; scales.len()];
            let decoded = QnatRows { codes: &codes, cols: block, scales: &scales, zeros: &zeros };
            dispatch(values.level, &decoded, Out::F32(&mut back[run]));
        }
        // The step is behind the bytes of all scales, so it belongs to no tile.
        if double_quant && values.tile.is_first() {
            put(0, scales_at + self.block_count() as u64, &step.to_le_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::TargetDtype;
    use crate::lethe::tests_support::{by_name, bytes_of, encode, values_of};
    use crate::write::Framing;
    use crate::write::qnat::{QnatOutputTensor, layout};

    /// The real writer's files of these inputs, byte for byte, and what they decode to.
    #[test]
    fn files_of_the_real_writer() {
        let Some(data) = crate::test_utils::test_data() else {
            return;
        };
        let text = std::fs::read(data.join("qnat/index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let mut seen = [0, 0];
        for case in index["cases"].as_array().unwrap() {
            let ([t], Some(input)) =
                (&case["tensors"].as_array().unwrap()[..], case["input"].as_str())
            else {
                continue;
            };
            let is = |key: &str| t[key].as_bool().unwrap();
            let (name, double_quant) = (case["name"].as_str().unwrap(), is("double_quant"));
            let n = t["num_blocks"].as_u64().unwrap() * t["block_size"].as_u64().unwrap();
            let plain = !is("zero_points")
                && !is("per_channel")
                && case["model_name"] == "qlora-model"
                && case["model_type"] == "qlora";
            let version = if double_quant { 2 } else { 1 };
            if !plain || name.contains("hostile") || case["version"] != version || n == 0 {
                continue;
            }
            let (input, file) = (
                crate::parse(data.join(format!("qnat/{input}"))).unwrap(),
                data.join(format!("qnat/{name}.qnat")),
            );
            let weight = input.tensors().next().unwrap();
            let (shape, values) = (weight.shape(), values_of(&weight));
            let block = t["block_size"].as_u64().unwrap() as usize;
            let (rows, cols) =
                (shape.iter().rev().skip(1).product(), shape.last().copied().unwrap_or(1));
            let encoder =
                QnatEncoder { name: weight.name().to_owned(), rows, cols, block, double_quant };
            let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
            let encoded = encode(&encoder, &values, f64::from(max));
            let model = crate::parse(&file).unwrap();
            let want = bytes_of(&by_name(&model)[weight.name()]);
            let stored = &encoded.stored[0].1;
            let zero_block = values
                .chunks(block)
                .any(|values| values.iter().all(|&x| x == 0.0));
            if double_quant && zero_block && max > 0.0 && max < 1.0 {
                assert_ne!(*stored, want, "{name}: qlora-rs takes 1 for the largest scale");
                continue;
            }
            assert_eq!(*stored, want, "{name}");
            let tensor = QnatOutputTensor {
                name: weight.name(),
                shape,
                block,
                blocks: encoder.block_count(),
            };
            let layout = layout(&[tensor], &HashMap::new(), double_quant).unwrap();
            let Framing::Pieces(mut pieces) = layout.framing else {
                panic!("{name}: not of pieces");
            };
            let mut whole = pieces.remove(0).1;
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
            seen[usize::from(double_quant)] += 1;
        }
        assert!(seen[0] >= 12 && seen[1] >= 4, "{seen:?}");
    }

    #[test]
    fn objections_say_why() {
        let objection = |shape: &[usize]| {
            Qnat { double_quant: false }.objection(&WeightInfo {
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
