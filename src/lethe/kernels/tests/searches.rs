//! Searches of scales: what they gain, by that of trying every scale; no group loses by them; the same
//! codes at every CPU level.

use std::marker::PhantomData;

use super::random;
use crate::TargetDtype;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK, codebook_encoder};
use crate::lethe::kernels::fp8::{EncodeFp8Blocks, Fp8Arithmetic};
use crate::lethe::kernels::groups::{EncodeGroups, GroupArithmetic};
use crate::lethe::kernels::integer::{IntegerGroups, IntegerQuantizer, IntegerRule};
use crate::lethe::kernels::mx::{BLOCK as MX_BLOCK, ModelOptMx};
use crate::lethe::kernels::narrow::Fp4E2M1;
use crate::lethe::kernels::nvfp4::{
    CompressedTensorsNvfp4, ModelOptNvfp4, global_divisor, global_multiplier,
};
use crate::remember::kernels::fp8::E4M3;
use crate::remember::kernels::nvfp4::BLOCK;
use crate::simd::{Level, perform};
use crate::test_utils::miri_or;

/// Values as weights have them: sums of twelve random numbers are nearly Gaussian, and every
/// seventeenth is an outlier.
fn values(n: usize) -> Vec<f32> {
    let numbers: Vec<f32> = random(n * 12).collect();
    let sums = numbers.chunks(12).map(|twelve| twelve.iter().sum::<f32>());
    let outlier = |(i, x): (usize, f32)| if i % 17 == 3 { x * 2.5 } else { x };
    sums.enumerate().map(outlier).map(|x| x * 0.01).collect()
}

/// Importances, whose logarithms have this spread.
fn weights(n: usize, spread: f32) -> Vec<f32> {
    random(n + 5)
        .skip(5)
        .map(|x| (x * 2.0 * spread).exp())
        .collect()
}

/// Means of 0.
static NO_MEANS: [f32; 1 << 16] = [0.0; 1 << 16];

/// Activations whose means are not known.
fn of_weights(weights: &[f32]) -> Activations<'_> {
    Activations { variances: weights, means: &NO_MEANS[..weights.len()], row: weights.len().max(1) }
}

/// Activations of rows of `row` values with these variances, and with means about as large as their
/// deviations.
struct Known {
    variances: Vec<f32>,
    means: Vec<f32>,
    row: usize,
}

impl Known {
    fn new(n: usize, row: usize) -> Self {
        let variances = weights(n, 1.0);
        let signs = random(n + 9).skip(9).map(|x| x * 3.0);
        let means = signs.zip(&variances).map(|(sign, v)| sign * v.sqrt());
        Self { means: means.collect(), variances, row }
    }

    fn activations(&self) -> Activations<'_> {
        let Self { variances, means, row } = self;
        Activations { variances, means, row: *row }
    }

    /// The mean square of what errors add to the outputs.
    fn cost(&self, values: &[f32], back: &[f32]) -> f64 {
        let errors = values.iter().zip(back).map(|(x, back)| f64::from(back - x));
        let statistics = self.variances.iter().zip(&self.means);
        let terms = errors
            .zip(statistics)
            .map(|(e, (&v, &m))| [e * e * f64::from(v), e * f64::from(m)]);
        let terms: Vec<[f64; 2]> = terms.collect();
        let of_row = |row: &[[f64; 2]]| {
            let [squares, errors] = [0, 1].map(|i| row.iter().map(|term| term[i]).sum::<f64>());
            squares + errors * errors
        };
        terms.chunks(self.row).map(of_row).sum()
    }

    /// Encodings that know the means cost the outputs less than those that only know mean squares.
    fn lower_costs(&self, values: &[f32], encode: impl Fn(Activations<'_>, Level) -> Vec<f32>) {
        let squares = self
            .variances
            .iter()
            .zip(&self.means)
            .map(|(v, m)| v + m * m);
        let squares: Vec<f32> = squares.collect();
        let [without, with] = [of_weights(&squares), self.activations()]
            .map(|activations| self.cost(values, &encode(activations, Level::detect())));
        assert!(with < 0.6 * without, "{with} {without}");
        let there = encode(self.activations(), Level::Baseline);
        for level in Level::available() {
            assert_eq!(encode(self.activations(), level), there, "{level:?}");
        }
    }
}

#[test]
fn means_of_activations() {
    const ROW: usize = 512;
    let values = values(ROW * miri_or(1, 24));
    let known = Known::new(values.len(), ROW);
    for rule in RULES {
        let bits = bits_of(rule, 4);
        let q = IntegerQuantizer { rule, bits, group: 64, dtype: TargetDtype::BF16 };
        known.lower_costs(&values, |known, level| encode_integers(&q, &values, known, level).1);
    }
    let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    let nvfp4 = ModelOptNvfp4(global_multiplier(max));
    known.lower_costs(&values, |known, level| {
        encode_groups::<_, BLOCK>(&nvfp4, &values, known, level).2
    });
    let mxfp4 = ModelOptMx::<Fp4E2M1>(PhantomData);
    known.lower_costs(&values, |known, level| {
        encode_groups::<_, MX_BLOCK>(&mxfp4, &values, known, level).2
    });
    for arithmetic in FP8 {
        for block in [[1, ROW], [1, 64]] {
            known.lower_costs(&values, |known, level| {
                encode_fp8(arithmetic, &values, (ROW, block), known, level).2
            });
        }
    }
    let encoder = codebook_encoder(&NF4_CODEBOOK);
    known.lower_costs(&values, |known, level| {
        let mut back = vec![0.0; values.len()];
        let out = (&mut vec![], &mut vec![]);
        encoder.encode_searched((&values, known), 64, level, out, &mut back);
        back
    });
}

#[test]
fn nothing_is_carried_to_the_next_row() {
    const ROW: usize = 256;
    let values = values(2 * ROW);
    let known = Known::new(values.len(), ROW);
    let q = IntegerQuantizer { rule: RULES[0], bits: 4, group: 64, dtype: TargetDtype::F32 };
    let (_, both) = encode_integers(&q, &values, known.activations(), Level::detect());
    let second = known.activations().of_run(ROW..2 * ROW);
    let (_, alone) = encode_integers(&q, &values[ROW..], second, Level::detect());
    assert_eq!(both[ROW..], alone);
}

/// The weighted error of each group.
fn errors(values: &[f32], weights: &[f32], back: &[f32], group: usize) -> Vec<f64> {
    let error = |((&x, &w), &back): ((&f32, &f32), &f32)| {
        f64::from(w) * (f64::from(back) - f64::from(x)).powi(2)
    };
    let all: Vec<f64> = values.iter().zip(weights).zip(back).map(error).collect();
    all.chunks(group).map(|group| group.iter().sum()).collect()
}

/// What a search gains of what `least`, the best of all scales, could gain. No group loses.
fn gained(plain: &[f64], found: &[f64], least: f64) -> f64 {
    for (found, plain) in found.iter().zip(plain) {
        assert!(*found <= plain * (1.0 + 1e-5));
    }
    let [plain, found] = [plain, found].map(|errors| errors.iter().sum::<f64>());
    (plain - found) / (plain - least)
}

const RULES: [IntegerRule; 7] = [
    IntegerRule::CompressedTensors { symmetric: true },
    IntegerRule::CompressedTensors { symmetric: false },
    IntegerRule::Gptq { symmetric: true },
    IntegerRule::Gptq { symmetric: false },
    IntegerRule::Awq,
    IntegerRule::Mlx,
    IntegerRule::LlmInt8,
];

/// The bits of codes of a rule that has them, for one that is asked to have `bits`.
fn bits_of(rule: IntegerRule, bits: usize) -> usize {
    match rule {
        IntegerRule::Awq => 4,
        IntegerRule::LlmInt8 => 8,
        _ => bits,
    }
}

fn encode_integers(
    q: &IntegerQuantizer,
    values: &[f32],
    activations: Activations<'_>,
    level: Level,
) -> (IntegerGroups, Vec<f32>) {
    let (mut out, mut back) = (IntegerGroups::default(), vec![0.0; values.len()]);
    q.encode(values, activations, level, &mut back, &mut out);
    (out, back)
}

/// The least weighted error of a group over many scales of both signs and these zero points; of a line
/// also over those that are fitted to the codes.
fn least_of_integers(bits: usize, zeros: &[f64], is_line: bool, x: &[f32], w: &[f32]) -> f64 {
    let most = f64::from((1u32 << bits) - 1);
    let largest = x.iter().fold(0f32, |max, x| max.max(x.abs()));
    let error = |scale: f64, zero: f64| -> f64 {
        let code = |x: f32| (f64::from(x) / scale + zero).round().clamp(0.0, most);
        let points = x.iter().zip(w);
        let points = points.map(|(&x, &w)| (code(x), f64::from(x), f64::from(w)));
        if is_line {
            return error_of_line(points);
        }
        points
            .map(|(code, x, w)| w * (scale * (code - zero) - x).powi(2))
            .sum()
    };
    let scales =
        (0..160).map(|step| 2.0 * f64::from(largest) / most * (0.15 + f64::from(step) / 160.0));
    let candidates = scales.flat_map(|scale| [scale, -scale]);
    let all = candidates.flat_map(|scale| zeros.iter().map(move |&zero| (scale, zero)));
    all.fold(f64::INFINITY, |least, (scale, zero)| least.min(error(scale, zero)))
}

/// The weighted squares that the best line leaves of values over codes.
fn error_of_line(points: impl Iterator<Item = (f64, f64, f64)> + Clone) -> f64 {
    let [mut weight, mut codes, mut values] = [0.0; 3];
    for (code, x, w) in points.clone() {
        (weight, codes, values) = (weight + w, codes + w * code, values + w * x);
    }
    let [mut covariance, mut variance, mut square] = [0.0; 3];
    for (code, x, w) in points {
        let (code, x) = (code - codes / weight, x - values / weight);
        covariance += w * code * x;
        variance += w * code * code;
        square += w * x * x;
    }
    match variance > 0.0 {
        true => square - covariance * covariance / variance,
        false => square,
    }
}

#[test]
fn integers() {
    const GROUP: usize = 64;
    for rule in RULES {
        let widths = match rule {
            IntegerRule::Awq => &[4][..],
            IntegerRule::LlmInt8 => &[8],
            IntegerRule::Mlx => &[2, 3, 4, 5, 6],
            IntegerRule::CompressedTensors { symmetric: true }
            | IntegerRule::Gptq { symmetric: true } => &[2, 3, 4, 8],
            _ => &[2, 3, 4],
        };
        for (bits, spread) in widths.iter().flat_map(|&bits| [(bits, 0.0), (bits, 1.5)]) {
            // The steps of a scale in BF16 are coarser than what more bits gain, or a line.
            let dtype = if bits > 4 || rule == IntegerRule::Mlx {
                TargetDtype::F32
            } else {
                TargetDtype::BF16
            };
            let q = IntegerQuantizer { rule, bits, group: GROUP, dtype };
            let values = values(GROUP * miri_or(1, 12));
            let weights = weights(values.len(), spread);
            let of = |searched: Activations<'_>| {
                let (_, back) = encode_integers(&q, &values, searched, Level::detect());
                errors(&values, &weights, &back, GROUP)
            };
            let codes = 1u32 << bits;
            let zeros: Vec<f64> = match rule {
                IntegerRule::CompressedTensors { symmetric: true }
                | IntegerRule::Gptq { symmetric: true }
                | IntegerRule::LlmInt8 => vec![f64::from(codes / 2)],
                IntegerRule::Mlx => (0..codes * 4).map(|i| f64::from(i) / 4.0).collect(),
                _ => (0..codes).map(f64::from).collect(),
            };
            let groups = values.chunks(GROUP).zip(weights.chunks(GROUP));
            let least = groups
                .map(|(x, w)| least_of_integers(bits, &zeros, rule == IntegerRule::Mlx, x, w))
                .sum();
            let found = of(of_weights(&weights));
            let part = gained(&of(Activations::default()), &found, least);
            // What lines explain has many narrow peaks if weights differ much or codes are many.
            let goal = match rule {
                IntegerRule::Mlx if spread > 0.0 || bits > 5 => 0.93,
                _ => 0.98,
            };
            assert!(part > goal, "{q:?}, weights of {spread}: {part}");
        }
    }
}

#[test]
fn integers_at_every_level() {
    for rule in RULES {
        for (bits, group) in [(4, 32), (4, 75), (3, 128)] {
            if bits_of(rule, bits) != bits && group != 75 {
                continue;
            }
            let bits = bits_of(rule, bits);
            for dtype in [TargetDtype::F32, TargetDtype::F16, TargetDtype::BF16] {
                let q = IntegerQuantizer { rule, bits, group, dtype };
                let mut values = values(group * 5);
                // Groups of zeros, of one value, of subnormal values, and without importance.
                values[..group].fill(0.0);
                values[group..2 * group].fill(0.25);
                values[2 * group..3 * group]
                    .iter_mut()
                    .for_each(|x| *x *= 1e-38);
                let mut weights = weights(values.len(), 1.0);
                weights[3 * group..4 * group].fill(0.0);
                let known = of_weights(&weights);
                let (there, back) = encode_integers(&q, &values, known, Level::Baseline);
                let (_, plain) =
                    encode_integers(&q, &values, Activations::default(), Level::Baseline);
                assert_eq!(back[3 * group..4 * group], plain[3 * group..4 * group], "{q:?}");
                assert!(back.iter().all(|x| x.is_finite()), "{q:?}");
                for level in Level::available() {
                    let (out, found) = encode_integers(&q, &values, known, level);
                    assert_eq!(
                        (&out.codes, found),
                        (&there.codes, back.clone()),
                        "{q:?} {level:?}"
                    );
                }
            }
        }
    }
}

/// Codes, scales and what they decode to, of rows of `width` values in blocks.
fn encode_fp8(
    arithmetic: Fp8Arithmetic,
    values: &[f32],
    (width, [rows, cols]): (usize, [usize; 2]),
    activations: Activations<'_>,
    level: Level,
) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (n, height) = (values.len(), values.len() / width);
    let blocks = height.div_ceil(rows) * width.div_ceil(cols);
    let (mut codes, mut scales, mut back) = (vec![0; n], vec![0.0; blocks], vec![0.0; n]);
    let mut kernel = EncodeFp8Blocks {
        values,
        width,
        rows,
        cols,
        maxima: &[],
        codes: &mut codes,
        back: &mut back,
        scales: &mut scales,
        arithmetic,
        activations,
        code: PhantomData::<E4M3>,
    };
    perform(level, &mut kernel);
    (codes, scales, back)
}

const FP8: [Fp8Arithmetic; 4] = [
    Fp8Arithmetic::Transformers { is_ue8m0: false },
    Fp8Arithmetic::CompressedTensors(TargetDtype::BF16),
    Fp8Arithmetic::CompressedTensors(TargetDtype::F16),
    Fp8Arithmetic::Sdnq,
];

#[test]
fn fp8_blocks() {
    let (width, height) = (192, miri_or(2, 12));
    let mut values = values(width * height);
    // Rows of zeros, of subnormal values, and without importance.
    values[..width].fill(0.0);
    values[width..2 * width]
        .iter_mut()
        .for_each(|x| *x *= 1e-38);
    for (arithmetic, block) in FP8
        .into_iter()
        .flat_map(|a| [(a, [1, width]), (a, [1, 64]), (a, [4, 80])])
    {
        for spread in [0.0, 1.5] {
            let mut weights = weights(values.len(), spread);
            weights[(height - 1) * width..].fill(0.0);
            let searched = Activations { row: width, ..of_weights(&weights) };
            let encode = |known: Activations<'_>, level: Level| {
                encode_fp8(arithmetic, &values, (width, block), known, level)
            };
            let (_, scales, back) = encode(searched, Level::Baseline);
            for level in Level::available() {
                assert_eq!(encode(searched, level), (encode(searched, Level::Baseline)));
            }
            let (_, _, plain) = encode(Activations::default(), Level::Baseline);
            // No block loses, and all of them gain about as much as the rows have.
            let of_blocks = |back: &[f32]| {
                let mut sums = vec![0.0; scales.len()];
                let all = errors(&values, &weights, back, 1);
                for (i, error) in all.iter().enumerate() {
                    let (row, col) = (i / width, i % width);
                    sums[row / block[0] * width.div_ceil(block[1]) + col / block[1]] += error;
                }
                sums
            };
            let (found, plain) = (of_blocks(&back), of_blocks(&plain));
            for (found, plain) in found.iter().zip(&plain) {
                assert!(*found <= plain * (1.0 + 1e-5), "{arithmetic:?} {block:?}");
            }
            let [found, plain] = [found, plain].map(|errors| errors.iter().sum::<f64>());
            assert!(found < 0.9 * plain, "{arithmetic:?} {block:?}: {}", found / plain);
        }
    }
}

/// Codes, scales and what they decode to.
fn encode_groups<A: GroupArithmetic<GROUP>, const GROUP: usize>(
    arithmetic: &A,
    values: &[f32],
    activations: Activations<'_>,
    level: Level,
) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let n = values.len();
    let (mut codes, mut scales, mut back) = (vec![0; n / 2], vec![0; n / GROUP], vec![0.0; n]);
    let (codes_out, scale_bytes) = (&mut codes[..], &mut scales[..]);
    let back_out = &mut back[..];
    perform(
        level,
        &mut EncodeGroups {
            arithmetic,
            values,
            activations,
            codes: codes_out,
            scale_bytes,
            back: back_out,
        },
    );
    (codes, scales, back)
}

/// The searches of one arithmetic of FP4 against all scales that a byte has.
fn fp4_groups<A: GroupArithmetic<GROUP>, const GROUP: usize>(
    arithmetic: &A,
    values: &[f32],
    goal: f64,
) {
    for spread in [0.0, 1.0, 2.0] {
        let weights = weights(values.len(), spread);
        let of = |searched: Activations<'_>| {
            let (.., back) = encode_groups(arithmetic, values, searched, Level::detect());
            errors(values, &weights, &back, GROUP)
        };
        let groups = values.chunks(GROUP).zip(weights.chunks(GROUP));
        let least = groups.map(|(x, w)| {
            let scales = (0..=255).filter_map(|byte| arithmetic.scale_of(byte));
            let error = scales.map(|scale| {
                let of_value = |(&x, &w): (&f32, &f32)| {
                    let (_, value) = arithmetic.code(arithmetic.scaled(x, scale.factor));
                    f64::from(w) * f64::from(value * scale.scale - x).powi(2)
                };
                x.iter().zip(w).map(of_value).sum()
            });
            error.fold(f64::INFINITY, f64::min)
        });
        let part = gained(&of(Activations::default()), &of(of_weights(&weights)), least.sum());
        assert!(part > goal, "groups of {GROUP}, weights of {spread}: {part}");
        let there = encode_groups(arithmetic, values, of_weights(&weights), Level::Baseline);
        for level in Level::available() {
            assert_eq!(encode_groups(arithmetic, values, of_weights(&weights), level), there);
        }
    }
}

#[test]
fn groups() {
    let mut values = values(MX_BLOCK * miri_or(2, 40));
    values[..MX_BLOCK].fill(0.0);
    let max = values.iter().fold(0f32, |max, x| max.max(x.abs()));
    fp4_groups::<_, BLOCK>(&ModelOptNvfp4(global_multiplier(max)), &values, 0.98);
    let dtype = TargetDtype::BF16;
    fp4_groups::<_, BLOCK>(
        &CompressedTensorsNvfp4(global_divisor(dtype, max), dtype),
        &values,
        0.98,
    );
    fp4_groups::<_, MX_BLOCK>(&ModelOptMx::<Fp4E2M1>(PhantomData), &values, 0.98);
}

#[test]
fn codebooks() {
    for codebook in [&NF4_CODEBOOK, &FP4_CODEBOOK] {
        let encoder = codebook_encoder(codebook);
        for (block, spread) in [(64, 0.0), (64, 1.5), (32, 1.0), (128, 0.5)] {
            let mut values = values(block * miri_or(1, 40) + 6);
            values[block * miri_or(0, 1)..][..miri_or(0, block)].fill(0.0);
            let weights = weights(values.len(), spread);
            let run = |searched: Activations<'_>, level: Level| {
                let (mut codes, mut scales) = (vec![], vec![]);
                let mut back = vec![0.0; values.len()];
                let out = (&mut codes, &mut scales);
                match searched.is_empty() {
                    true => encoder.encode(&values, block, level, out, &mut back),
                    false => {
                        encoder.encode_searched((&values, searched), block, level, out, &mut back);
                    }
                }
                (codes, scales, back)
            };
            let of = |searched: Activations<'_>| {
                errors(&values, &weights, &run(searched, Level::detect()).2, block)
            };
            let groups = values.chunks(block).zip(weights.chunks(block));
            let least = groups.map(|(x, w)| {
                let largest = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                let scales = (0..600).map(|i| f64::from(largest) * (0.2 + f64::from(i) / 400.0));
                let error = |scale: f64| {
                    let of_value = |(&x, &w): (&f32, &f32)| {
                        let off = |level: &f32| (f64::from(*level) * scale - f64::from(x)).abs();
                        let nearest = codebook.iter().map(off).fold(f64::INFINITY, f64::min);
                        f64::from(w) * nearest * nearest
                    };
                    x.iter().zip(w).map(of_value).sum()
                };
                scales.map(error).fold(f64::INFINITY, f64::min)
            });
            let part = gained(&of(Activations::default()), &of(of_weights(&weights)), least.sum());
            assert!(part > 0.98, "blocks of {block}, weights of {spread}: {part}");
            let there = run(of_weights(&weights), Level::Baseline);
            for level in Level::available() {
                assert_eq!(run(of_weights(&weights), level), there, "{level:?}");
            }
        }
    }
}

#[test]
fn squares_of_outputs() {
    const ROW: usize = 75;
    for size in [1e-30f32, 1.0, 1e30] {
        let values: Vec<f32> = values(ROW * 4).iter().map(|x| x * size).collect();
        let back: Vec<f32> = values.iter().map(|x| x * 1.25 + size * 1e-3).collect();
        let known = Known::new(values.len(), ROW);
        let zeros = vec![0.0; values.len()];
        for level in Level::available() {
            let found = known.activations().outputs(&values, &back, level);
            let ratios = [
                found.errors / known.cost(&values, &back),
                found.values / known.cost(&zeros, &values),
            ];
            assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-6), "{size:e} {ratios:?}");
        }
    }
}
