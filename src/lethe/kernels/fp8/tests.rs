use half::bf16;

use super::*;
use crate::remember::kernels::fp8::E4M3;
use crate::simd::{Level, perform};
use crate::test_utils::miri_or;

/// Values of all scales, with both zeros, subnormals and an outlier.
fn values(n: usize) -> Vec<f32> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits((state >> 1) % (40 << 23) + (100 << 23))
            * if state & 1 == 0 { 1.0 } else { -1.0 }
    };
    let mut values: Vec<f32> = (0..n).map(|_| bf16::from_f32(next()).to_f32()).collect();
    values[..4].copy_from_slice(&[0.0, -0.0, f32::from_bits(1 << 16), -f32::MIN_POSITIVE]);
    values[n / 2] = bf16::from_f32(1e30).to_f32();
    values
}

/// compressed-tensors in BF16, as its operations are, one by one; or sdnq, which computes in F32, keeps
/// scales of 0 and makes zero of NaN.
fn twin(
    values: &[f32],
    width: usize,
    [rows, cols]: [usize; 2],
    is_sdnq: bool,
) -> (Vec<u8>, Vec<f32>) {
    let rounded = |x: f32| {
        if is_sdnq {
            x
        } else {
            bf16::from_f32(x).to_f32()
        }
    };
    let height = values.len() / width;
    let mut codes = vec![0; values.len()];
    let mut scales = vec![];
    for top in (0..height).step_by(rows) {
        for left in (0..width).step_by(cols) {
            let places = (top..height.min(top + rows))
                .flat_map(|r| (left..width.min(left + cols)).map(move |c| (r, c)));
            let places: Vec<usize> = places.map(|(r, c)| r * width + c).collect();
            let max = places
                .iter()
                .fold(0.0f32, |max, &i| max.max(values[i].abs()));
            let scale = match rounded(max / 448.0) {
                0.0 if !is_sdnq => 0.007_812_5,
                scale => scale,
            };
            scales.push(scale);
            for i in places {
                let x = match values[i] / scale {
                    x if !is_sdnq => rounded(x) + 0.0,
                    x if x.is_nan() => 0.0,
                    x => x,
                };
                let x = x.clamp(-448.0, 448.0);
                let distance = |code: u8| (E4M3::widen(code) - x.abs()).abs();
                let nearest = (0..0x7fu8).min_by(|&a, &b| {
                    distance(a)
                        .total_cmp(&distance(b))
                        .then((a & 1).cmp(&(b & 1)))
                });
                codes[i] = nearest.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 };
            }
        }
    }
    (codes, scales)
}

#[test]
fn blocks_are_as_one_value_at_a_time() {
    let (height, width) = miri_or((5, 11), (19, 53));
    let mut values = values(height * width);
    // Rows of zeros, and of values so small that their scale is 0.
    values[width..2 * width].fill(-0.0);
    for (i, x) in values[2 * width..3 * width].iter_mut().enumerate() {
        *x = f32::from_bits(i as u32 % 99) * if i % 2 == 0 { 1.0 } else { -1.0 };
    }
    let blocks = [[1, width], miri_or([2, 4], [8, 16]), [height, width], [3, 1], [32, 64]];
    for (block, is_sdnq) in blocks
        .into_iter()
        .flat_map(|block| [(block, false), (block, true)])
    {
        let (codes, scales) = twin(&values, width, block, is_sdnq);
        let compressed_tensors = Fp8Arithmetic::CompressedTensors(TargetDtype::BF16);
        let arithmetic = match is_sdnq {
            true => Fp8Arithmetic::Sdnq,
            false => compressed_tensors,
        };
        for level in Level::available() {
            let mut ours = EncodeFp8Blocks {
                values: &values,
                width,
                rows: block[0],
                cols: block[1],
                maxima: &[],
                codes: &mut vec![0; values.len()],
                back: &mut vec![0.0; values.len()],
                scales: &mut vec![0.0; scales.len()],
                arithmetic,
                activations: Activations::default(),
                code: PhantomData::<E4M3>,
            };
            perform(level, &mut ours);
            assert_eq!((&*ours.codes, &*ours.scales), (&*codes, &*scales), "{block:?} {level:?}");
        }
    }
}

/// Parts of a row of blocks have the codes of the whole, if the largest magnitudes of the blocks
/// are known.
#[test]
fn parts_of_blocks_are_as_the_whole() {
    let (height, width, cols) = miri_or((4, 12, 5), (32, 300, 128));
    let values = values(height * width);
    let encode = |values: &[f32], maxima: &[f32]| {
        let mut codes = vec![0; values.len()];
        let mut back = vec![0.0; values.len()];
        let mut scales = vec![0.0; width.div_ceil(cols)];
        let mut kernel = EncodeFp8Blocks {
            values,
            width,
            rows: height,
            cols,
            maxima,
            codes: &mut codes,
            back: &mut back,
            scales: &mut scales,
            arithmetic: Fp8Arithmetic::Transformers { is_ue8m0: false },
            activations: Activations::default(),
            code: PhantomData::<E4M3>,
        };
        perform(Level::detect(), &mut kernel);
        (codes, back, scales)
    };
    let (codes, back, scales) = encode(&values, &[]);
    let mut maxima = vec![0.0f32; scales.len()];
    for row in values.chunks(width) {
        for (max, block) in maxima.iter_mut().zip(row.chunks(cols)) {
            *max = block.iter().fold(*max, |max, x| max.max(x.abs()));
        }
    }
    let part = 3 * width;
    for (first, part) in values.chunks(part).enumerate() {
        let all = first * 3 * width..first * 3 * width + part.len();
        let expected = (codes[all.clone()].to_vec(), back[all].to_vec(), scales.clone());
        assert_eq!(encode(part, &maxima), expected);
    }
}

#[test]
fn nothing_but_zero() {
    for is_ue8m0 in [false, true] {
        let transformers = Fp8Arithmetic::Transformers { is_ue8m0 };
        assert_eq!(transformers.scale::<E4M3>(0.0), (1.0, 1.0));
    }
    let compressed_tensors = Fp8Arithmetic::CompressedTensors(TargetDtype::BF16);
    assert_eq!(compressed_tensors.scale::<E4M3>(0.0), (0.007_812_5, 0.007_812_5));
    // Where the library has NaN.
    let comfy_kitchen = Fp8Arithmetic::ComfyKitchen(TargetDtype::BF16);
    assert_eq!(comfy_kitchen.scale::<E4M3>(0.0), (0.0, 1.0));
}
