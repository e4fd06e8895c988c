//! bitsandbytes' double quantization: scales as 8-bit codes of a fixed map, as it quantizes on a
//! CPU.
//!
//! Algorithms: bitsandbytes 0.50.2 `csrc/cpu_ops.cpp`, `quantize_cpu_impl` and
//! `build_quantize_lut`; `functional.py`, `create_dynamic_map`.

use crate::simd::zip;
use std::sync::OnceLock;

use crate::lethe::kernels::codebook::absmax;

/// Scales that are quantized together.
pub(crate) const NESTED_BLOCK: usize = 256;

/// `create_dynamic_map` of bitsandbytes: the 256 levels of scales, in ascending order.
///
/// There are seven decades of each sign, which end at 1e-6, 1e-5, …, 1. Each has twice as many
/// levels as the one below it: the middles of equal steps from a tenth of its end to its end. 0 and
/// 1 complete them.
pub(crate) fn dynamic_map() -> &'static [f32; 256] {
    static MAP: OnceLock<[f32; 256]> = OnceLock::new();
    MAP.get_or_init(|| {
        let mut map = [0.0; 256];
        // Positive levels begin in the middle, and negative ones mirror them: entry 127 stays 0.
        let mut at = 128;
        for decade in 0..7 {
            let steps = 1usize << decade;
            // Literals rather than products of tenths: each is the F32 nearest to its decade.
            let unit = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0][decade];
            for i in 0..steps {
                let middle = (linspace_element(i, steps) + linspace_element(i + 1, steps)) / 2.0;
                map[at] = unit * middle;
                map[254 - at] = -map[at];
                at += 1;
            }
        }
        map[255] = 1.0;
        map
    })
}

/// Element `i` of torch's `linspace(0.1, 1, steps + 1)`: from the nearer end, rounded once.
fn linspace_element(i: usize, steps: usize) -> f32 {
    let step = f64::from((1.0 - 0.1f32) / steps as f32);
    // torch computes the second half backwards from the end, so that the last element is the end
    // itself.
    if i < steps.div_ceil(2) {
        (f64::from(0.1f32) + step * i as f64) as f32
    } else {
        (1.0 - step * (steps - i) as f64) as f32
    }
}

/// Codes of [`dynamic_map`] for 65536 values evenly spaced from -1 to 1: `build_quantize_lut` of
/// bitsandbytes.
///
/// Its CPU kernel rounds a value to one of these and looks the code up, so that some codes are not
/// the nearest.
fn dynamic_map_codes() -> &'static [u8; 1 << 16] {
    static CODES: OnceLock<Box<[u8; 1 << 16]>> = OnceLock::new();
    CODES.get_or_init(|| {
        let map = dynamic_map();
        // On the heap: 64 KiB are much for a worker's stack.
        let mut codes = Box::new([0; 1 << 16]);
        let mut code = 0;
        for (i, entry) in codes.iter_mut().enumerate() {
            let value = -1.0 + (2.0 * i as f32) / 65535.0;
            // Codes ascend with the values, so that one pass over both makes the table.
            while code < 255 && 0.5 * (map[code] + map[code + 1]) < value {
                code += 1;
            }
            *entry = code as u8;
        }
        codes
    })
}

/// `quantize_cpu_impl` of bitsandbytes for scales less their mean, `offset`, in blocks of
/// [`NESTED_BLOCK`], of which the last may be short. Appends a code for each scale to `codes` and a
/// scale for each block to `outer`.
pub(crate) fn encode_nested(
    scales: &[f32],
    offset: f32,
    codes: &mut Vec<u8>,
    outer: &mut Vec<f32>,
) {
    let lookup = dynamic_map_codes();
    let mut centered = [0.0; NESTED_BLOCK];
    for scales in scales.chunks(NESTED_BLOCK) {
        let centered = &mut centered[..scales.len()];
        zip(&mut centered[..], scales).for_each(|(x, scale)| *x = scale - offset);
        let max = absmax(centered);
        outer.push(max);
        // The reciprocal of 0 would be infinite, and make NaN of zeros.
        if max == 0.0 {
            codes.resize(codes.len() + scales.len(), 0);
            continue;
        }
        let factor = 1.0 / max;
        codes.extend(centered.iter().map(|&x| {
            // The kernel's last multiplication and addition are one FMA. In F64 both are exact, for
            // `half` is a multiple of 2^-25 and at most 1, and the cast to F32 rounds once, as the
            // FMA does.
            let half = ((x * factor).clamp(-1.0, 1.0) + 1.0) * 0.5;
            lookup[usize::from((f64::from(half) * 65535.0 + 0.5) as f32 as u16)]
        }));
    }
}
