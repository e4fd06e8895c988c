//! Naive searches for scales: of one group, one value after the other, with every code kept.

pub(super) fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

pub(super) fn furthest(values: &[f32]) -> f32 {
    let mut max = 0.0f32;
    for &x in values {
        if x.abs() > max.abs() {
            max = x;
        }
    }
    max
}

pub(super) fn square(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// A scale and its codes, from 0 on: `make_qx_quants`.
pub(super) fn symmetric(x: &[f32], w: &[f32], half: i32) -> (f32, Vec<i32>) {
    let max = furthest(x);
    if max.abs() < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let (mut scale, mut best, mut codes) = (0.0, 0.0, vec![]);
    for step in [0, -9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
        let inverse = -(half as f32 + 0.1 * step as f32) / max;
        let tried: Vec<i32> = x
            .iter()
            .map(|x| nearest(inverse * x).clamp(-half, half - 1))
            .collect();
        let (mut lx, mut l2) = (0.0, 0.0);
        for ((x, w), &l) in x.iter().zip(w).zip(&tried) {
            lx += w * x * l as f32;
            l2 += w * l as f32 * l as f32;
        }
        if step == 0 {
            scale = if l2 == 0.0 { 0.0 } else { lx / l2 };
        } else if l2 > 0.0 && lx * lx > best * l2 {
            scale = lx / l2;
        } else {
            continue;
        }
        (best, codes) = (scale * lx, tried);
    }
    (scale, codes.iter().map(|l| l + half).collect())
}

/// `make_q3_quants`
pub(super) fn coordinate(x: &[f32]) -> (f32, Vec<i32>) {
    let max = furthest(x);
    if max.abs() < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let (mut lx, mut l2) = (0.0, 0.0);
    let inverse = -4.0 / max;
    let mut codes: Vec<i32> = x
        .iter()
        .map(|x| nearest(inverse * x).clamp(-4, 3))
        .collect();
    for (x, &l) in x.iter().zip(&codes) {
        lx += x * x * x * l as f32;
        l2 += x * x * l as f32 * l as f32;
    }
    for _ in 0..5 {
        for (x, code) in x.iter().zip(&mut codes) {
            let (w, l) = (x * x, *code as f32);
            let (mut new_lx, mut new_l2) = (lx - w * x * l, l2 - w * l * l);
            if new_lx > 0.0 {
                let new = nearest(x * new_l2 / new_lx).clamp(-4, 3);
                new_lx += w * x * new as f32;
                new_l2 += w * new as f32 * new as f32;
                if new != *code && new_l2 > 0.0 && new_lx * new_lx * l2 > lx * lx * new_l2 {
                    (*code, lx, l2) = (new, new_lx, new_l2);
                }
            }
        }
    }
    (if l2 > 0.0 { lx / l2 } else { 0.0 }, codes.iter().map(|l| l + 4).collect())
}

/// What is added to the highest code: the first, the increment and how often. With importance
/// values are clamped before they are rounded.
pub(super) type Steps = (f32, f32, i32);
pub(super) const IMPORTANT: Steps = (-0.9, 0.05, 36);

/// A scale, a minimum to take away and the codes: `make_qkx2_quants`, `make_qkx3_quants`.
pub(super) fn affine(
    x: &[f32],
    w: &[f32],
    top: i32,
    (first, delta, steps): Steps,
    squared: bool,
) -> (f32, f32, Vec<i32>) {
    let limit = top as f32;
    let mut min = x
        .iter()
        .copied()
        .fold(x[0], |a, b| if b < a { b } else { a });
    let max = x
        .iter()
        .copied()
        .fold(x[0], |a, b| if b > a { b } else { a });
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for (x, w) in x.iter().zip(w).skip(1) {
        sum_w += w;
        sum_x += w * x;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        return (0.0, -min, vec![0; x.len()]);
    }
    let error = |scale: f32, min: f32, codes: &[i32]| {
        x.iter().zip(w).zip(codes).fold(0.0, |sum, ((x, w), &l)| {
            let diff = scale * l as f32 + min - x;
            sum + w * if squared { diff * diff } else { diff.abs() }
        })
    };
    let inverse = limit / (max - min);
    let mut codes: Vec<i32> = x
        .iter()
        .map(|x| nearest(inverse * (x - min)).clamp(0, top))
        .collect();
    let mut scale = 1.0 / inverse;
    let mut best = error(scale, min, &codes);
    for step in 0..=steps {
        let inverse = (first + delta * step as f32 + limit) / (max - min);
        let code = |x: &f32| match inverse * (x - min) {
            x if steps != IMPORTANT.2 => nearest(x).clamp(0, top),
            x if x > 0.0 => nearest(if x < limit { x } else { limit }),
            _ => 0,
        };
        let tried: Vec<i32> = x.iter().map(code).collect();
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((x, w), &l) in x.iter().zip(w).zip(&tried) {
            let l = l as f32;
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let det = sum_w * sum_l2 - sum_l * sum_l;
        if det > 0.0 {
            let mut slope = (sum_w * sum_xl - sum_x * sum_l) / det;
            let mut least = (sum_l2 * sum_x - sum_l * sum_xl) / det;
            if least > 0.0 {
                (slope, least) = (sum_xl / sum_l2, 0.0);
            }
            let found = error(slope, least, &tried);
            if found < best {
                (best, scale, min, codes) = (found, slope, least, tried);
            }
        }
    }
    (scale, -min, codes)
}

/// `make_qp_quants`
pub(super) fn positive(x: &[f32], w: &[f32], top: i32) -> (f32, Vec<u8>) {
    let max = x
        .iter()
        .copied()
        .fold(0.0, |a, b| if a > b { a } else { b });
    if max < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let (mut inverse, mut best) = (0.0, f32::NAN);
    for step in [0, -4, -3, -2, -1, 1, 2, 3, 4] {
        let tried = (0.1 * step as f32 + top as f32) / max;
        let scale = 1.0 / tried;
        let error = x.iter().zip(w).fold(0.0, |sum, (x, w)| {
            let l = nearest(tried * x);
            let diff = x - scale
                * (if step == 0 {
                    i32::from(l as u8)
                } else {
                    l.min(top)
                }) as f32;
            sum + w * diff * diff
        });
        if step == 0 || error < best {
            (inverse, best) = (tried, error);
        }
    }
    let (mut lx, mut l2, mut codes) = (0.0, 0.0, vec![]);
    for (x, w) in x.iter().zip(w) {
        let l = nearest(inverse * x).min(top);
        lx += w * x * l as f32;
        l2 += w * l as f32 * l as f32;
        codes.push(l as u8);
    }
    for _ in 0..5 {
        for ((x, w), code) in x.iter().zip(w).zip(&mut codes) {
            let l = f32::from(*code);
            let (mut new_lx, mut new_l2) = (lx - w * x * l, l2 - w * l * l);
            if new_lx > 0.0 && new_l2 > 0.0 {
                let new = nearest(x * new_l2 / new_lx).min(top);
                new_lx += w * x * new as f32;
                new_l2 += w * new as f32 * new as f32;
                if new != i32::from(*code) && new_lx * new_lx * l2 > lx * lx * new_l2 {
                    (*code, lx, l2) = (new as u8, new_lx, new_l2);
                }
            }
        }
    }
    (if l2 > 0.0 { lx / l2 } else { 0.0 }, codes)
}

/// Weights of values from the importance of their columns.
pub(super) fn weigh(x: &[f32], importance: &[f32], mean: f32) -> Vec<f32> {
    x.iter()
        .zip(importance)
        .map(|(x, w)| w * (mean + x * x).sqrt())
        .collect()
}
