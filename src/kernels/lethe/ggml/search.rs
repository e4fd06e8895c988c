//! Searches for the scales of groups of values, several groups abreast: a lane for each. In a lane are the sums of
//! ggml's reference in its order, so that no bit differs. A choice that is a branch there is a select here.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `make_qx_quants` and `make_q3_quants`.

/// A value of each lane.
pub(super) type Lanes<const G: usize> = [f32; G];

/// The absolute maximum below which a group counts as zero.
pub(super) const TINY: f32 = 1e-15;

/// Half of the significand's range, and as much again: adding it rounds to an integer.
pub(super) const MAGIC: f32 = 12_582_912.0;

#[inline(always)]
pub(super) fn each<const G: usize>(f: impl Fn(usize) -> f32) -> Lanes<G> {
    let mut out = [0.0; G];
    for (g, out) in out.iter_mut().enumerate() {
        *out = f(g);
    }
    out
}

/// Groups of `N` consecutive values, as lanes.
#[inline(always)]
pub(super) fn transpose<const N: usize, const G: usize>(values: &[f32]) -> [Lanes<G>; N] {
    let mut out = [[0.0; G]; N];
    for (g, group) in values.as_chunks::<N>().0.iter().take(G).enumerate() {
        for (out, &x) in out.iter_mut().zip(group) {
            out[g] = x;
        }
    }
    out
}

/// `x` rounded to nearest even as ggml does it, which is not the nearest at all from 2^22 on.
#[inline(always)]
pub(super) fn nearest_int(x: f32) -> i32 {
    ((x + MAGIC).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// [`nearest_int`] as a number, between `low` and `high`.
#[inline(always)]
pub(super) fn nearest_in(x: f32, low: f32, high: f32) -> f32 {
    // The exponent is the one that it has after the addition unless x is too large.
    let rounded = f32::from_bits((x + MAGIC).to_bits() & 0x007f_ffff | 0x4b00_0000) - MAGIC;
    clamp(rounded, low, high)
}

/// A NaN is `low`.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// All bits for a lane that a condition holds in. Selects by them are no branches.
pub(super) type Mask<const G: usize> = [u32; G];

#[inline(always)]
pub(super) fn mask<const G: usize>(f: impl Fn(usize) -> bool) -> Mask<G> {
    let mut out = [0; G];
    for (g, out) in out.iter_mut().enumerate() {
        *out = 0u32.wrapping_sub(u32::from(f(g)));
    }
    out
}

/// `then` where the mask is set.
#[inline(always)]
pub(super) fn select<const G: usize>(
    mask: Mask<G>,
    then: Lanes<G>,
    otherwise: Lanes<G>,
) -> Lanes<G> {
    each(|g| f32::from_bits(then[g].to_bits() & mask[g] | otherwise[g].to_bits() & !mask[g]))
}

/// Keeps LLVM from looking through a reference to what was done before: it would take the lanes apart to follow the
/// values.
#[inline(always)]
pub(super) fn opaque<T>(values: &T) -> &T {
    std::hint::black_box(values)
}

/// The larger; the second unless the first is. Of a NaN and a number so the one that comes second.
#[inline(always)]
pub(super) fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// `x` of the greatest magnitude, the first of them, with its sign.
#[inline(always)]
pub(super) fn peak<const N: usize, const G: usize>(x: &[Lanes<G>; N]) -> Lanes<G> {
    let (mut most, mut peak) = ([0.0; G], [0.0; G]);
    for x in x {
        for g in 0..G {
            let larger = x[g].abs() > most[g];
            most[g] = if larger { x[g].abs() } else { most[g] };
            peak[g] = if larger { x[g] } else { peak[g] };
        }
    }
    peak
}

/// A scale without a minimum: codes from `-half` to `half - 1`.
pub(super) struct Scale<const G: usize> {
    pub(super) scale: Lanes<G>,
    /// Values times this, rounded, are the codes.
    inverse: Lanes<G>,
    /// Groups that count as zero. Their codes are 0 too, which is not the code of zero.
    zero: [bool; G],
    half: f32,
}

impl<const G: usize> Scale<G> {
    /// The code of `x` in lane `g`, from 0 on.
    #[inline(always)]
    pub(super) fn code(&self, g: usize, x: f32) -> u8 {
        let code = nearest_in(self.inverse[g] * x, -self.half, self.half - 1.0) + self.half;
        if self.zero[g] { 0 } else { code as u8 }
    }
}

/// Σwxl and Σwl² over the values of each lane, l being the codes by `inverse`. Weights may be infinite.
#[inline(always)]
fn moments<const FINITE: bool, const N: usize, const G: usize>(
    x: impl Fn(usize, usize) -> f32,
    w: impl Fn(usize, usize) -> f32,
    wx: impl Fn(usize, usize) -> f32,
    half: f32,
    inverse: Lanes<G>,
) -> (Lanes<G>, Lanes<G>) {
    let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
    for i in 0..N {
        for g in 0..G {
            let l = inverse[g] * x(i, g);
            let l = if FINITE {
                // In range: `inverse` is at most one step more than `half` over the greatest value.
                clamp((l + MAGIC) - MAGIC, -half, half - 1.0)
            } else {
                nearest_in(l, -half, half - 1.0)
            };
            lx[g] += wx(i, g) * l;
            l2[g] += w(i, g) * l * l;
        }
    }
    (lx, l2)
}

/// The steps around `half` that are tried.
const STEPS: [i8; 18] = [
    -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9,
];

/// The scale of each lane with the least weighted error, of those around its peak over `half`: `make_qx_quants`.
#[inline(always)]
pub(super) fn symmetric<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    w: &[Lanes<G>; N],
    half: f32,
) -> Scale<G> {
    let (x, w) = (opaque(x), opaque(w));
    let peak = peak(x);
    let mut wx = [[0.0; G]; N];
    for ((wx, w), x) in wx.iter_mut().zip(w).zip(x) {
        *wx = each(|g| w[g] * x[g]);
    }
    let sums = |inverse| {
        moments::<true, N, G>(
            |i, g| x[i][g],
            |i, g| w[i][g],
            |i, g| wx[i][g],
            half,
            inverse,
        )
    };
    let mut inverse = each(|g| -half / peak[g]);
    let (lx, l2) = sums(inverse);
    let mut scale = each(|g| if l2[g] == 0.0 { 0.0 } else { lx[g] / l2[g] });
    let mut best: Lanes<G> = each(|g| scale[g] * lx[g]);
    for step in STEPS {
        let level = -(half + 0.1 * f32::from(step));
        let tried = each(|g| level / peak[g]);
        let (lx, l2) = sums(tried);
        let better = mask(|g| (l2[g] > 0.0) & (lx[g] * lx[g] > best[g] * l2[g]));
        let ratio: Lanes<G> = each(|g| lx[g] / l2[g]);
        scale = select(better, ratio, scale);
        best = select(better, each(|g| ratio[g] * lx[g]), best);
        inverse = select(better, tried, inverse);
    }
    let mut zero = [false; G];
    for g in 0..G {
        zero[g] = peak[g].abs() < TINY;
        scale[g] = if zero[g] { 0.0 } else { scale[g] };
    }
    Scale {
        scale,
        inverse,
        zero,
        half,
    }
}

/// As [`symmetric`] for one group, with the steps as lanes. Its values may be scales that are not finite.
#[inline(always)]
pub(super) fn symmetric_one<const N: usize>(x: &[f32; N], w: &[f32; N], half: f32) -> Scale<1> {
    let mut peak = 0.0f32;
    for &x in x {
        peak = if x.abs() > peak.abs() { x } else { peak };
    }
    if peak.abs() < TINY {
        return Scale {
            scale: [0.0],
            inverse: [0.0],
            zero: [true],
            half,
        };
    }
    let mut wx = [0.0; N];
    for ((wx, w), x) in wx.iter_mut().zip(w).zip(x) {
        *wx = w * x;
    }
    // The first is the start, the last one is not needed.
    let tried: Lanes<20> = each(|c| match c {
        0 => -half / peak,
        c => -(half + 0.1 * f32::from(STEPS[(c - 1).min(17)])) / peak,
    });
    let (lx, l2) = moments::<false, N, 20>(|i, _| x[i], |i, _| w[i], |i, _| wx[i], half, tried);
    let mut scale = if l2[0] == 0.0 { 0.0 } else { lx[0] / l2[0] };
    let mut best = scale * lx[0];
    let mut inverse = tried[0];
    for c in 1..19 {
        if l2[c] > 0.0 && lx[c] * lx[c] > best * l2[c] {
            scale = lx[c] / l2[c];
            best = scale * lx[c];
            inverse = tried[c];
        }
    }
    Scale {
        scale: [scale],
        inverse: [inverse],
        zero: [false],
        half,
    }
}

/// A scale and codes that are improved one by one, the weight of a value being its square: `make_q3_quants`.
/// The codes are left in `codes`, from 0 on.
#[inline(always)]
pub(super) fn coordinate<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    half: f32,
    codes: &mut [Lanes<G>; N],
) -> Lanes<G> {
    let x = opaque(x);
    let peak = peak(x);
    let inverse: Lanes<G> = each(|g| -half / peak[g]);
    let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
    for (x, codes) in x.iter().zip(codes.iter_mut()) {
        for g in 0..G {
            let w = x[g] * x[g];
            let l = nearest_in(inverse[g] * x[g], -half, half - 1.0);
            codes[g] = l;
            lx[g] += w * x[g] * l;
            l2[g] += w * l * l;
        }
    }
    for _ in 0..5 {
        let mut changed = [0; G];
        for (x, codes) in x.iter().zip(codes.iter_mut()) {
            let w: Lanes<G> = each(|g| x[g] * x[g]);
            let wx: Lanes<G> = each(|g| w[g] * x[g]);
            let rest_lx: Lanes<G> = each(|g| lx[g] - wx[g] * codes[g]);
            let rest_l2: Lanes<G> = each(|g| l2[g] - w[g] * codes[g] * codes[g]);
            let new: Lanes<G> =
                each(|g| nearest_in(x[g] * rest_l2[g] / rest_lx[g], -half, half - 1.0));
            let new_lx: Lanes<G> = each(|g| rest_lx[g] + wx[g] * new[g]);
            let new_l2: Lanes<G> = each(|g| rest_l2[g] + w[g] * new[g] * new[g]);
            let better = mask(|g| {
                (rest_lx[g] > 0.0)
                    & (new[g] != codes[g])
                    & (new_l2[g] > 0.0)
                    & (new_lx[g] * new_lx[g] * l2[g] > lx[g] * lx[g] * new_l2[g])
            });
            *codes = select(better, new, *codes);
            lx = select(better, new_lx, lx);
            l2 = select(better, new_l2, l2);
            for g in 0..G {
                changed[g] |= better[g];
            }
        }
        if changed == [0; G] {
            break;
        }
    }
    let zero: Lanes<G> = each(|g| if peak[g].abs() < TINY { 0.0 } else { 1.0 });
    for codes in codes {
        *codes = each(|g| if zero[g] == 0.0 { 0.0 } else { codes[g] + half });
    }
    each(|g| {
        if zero[g] != 0.0 && l2[g] > 0.0 {
            lx[g] / l2[g]
        } else {
            0.0
        }
    })
}
