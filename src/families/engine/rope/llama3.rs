//! The scaling of Llama 3: frequencies below a limit are divided by a factor.
//!
//! Source: `LlamaModel.generate_extra_tensors` in `conversion/llama.py` of llama.cpp.

/// The parameters of Llama 3's scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Llama3 {
    pub base: f64,
    pub factor: f64,
    pub low: f64,
    pub high: f64,
    pub original: f64,
}

impl Llama3 {
    /// A factor for each pair of dimensions of a head.
    pub(crate) fn factors(&self, head: usize) -> Vec<f32> {
        let factor = |i: usize| {
            // torch computes frequencies in F32: exponents, powers and reciprocals are rounded to
            // it.
            let exponent = (2 * i) as f32 / head as f32;
            let frequency = 1.0 / (self.base as f32).powf(exponent);
            let wave = (2.0 * std::f64::consts::PI) as f32 / frequency;
            let (low, high) = (self.original / self.low, self.original / self.high);
            if f64::from(wave) < high {
                1.0
            } else if f64::from(wave) > low {
                self.factor as f32
            } else {
                let smooth =
                    (self.original as f32 / wave - self.low as f32) / (self.high - self.low) as f32;
                1.0 / ((1.0 - smooth) / self.factor as f32 + smooth)
            }
        };
        (0..head / 2).map(factor).collect()
    }

    /// The parameters that give `factors`; `None` if there are none. Only the ratios of the
    /// original length to the two limits count, so the limits are taken to be 1 and 4, as all
    /// models have them.
    pub(crate) fn of(factors: &[f32], base: f64, head: usize) -> Option<Self> {
        // The length of a head may be any number that a file has.
        if factors.len() != head / 2 {
            return None;
        }
        let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
        let guess = Self { base, factor, low: 1.0, high: 4.0, original: 8192.0 };
        // A factor between the two limits tells the original length.
        let between = factors.iter().enumerate().find_map(|(i, &found)| {
            let found = f64::from(found);
            if found <= 1.0 || found >= factor {
                return None;
            }
            let smooth = (1.0 / found - 1.0 / factor) / (1.0 - 1.0 / factor);
            let wave = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / head as f64);
            let length = wave * (smooth * (guess.high - guess.low) + guess.low);
            Some(length.round())
        });
        // Without one, several lengths give the same factors, and it does not matter which is
        // taken.
        let usual = [8192.0, 131_072.0].into_iter();
        let powers = (4..=24).rev().map(|power| f64::from(1 << power));
        let lengths = between.into_iter().chain(usual).chain(powers);
        let fits = |guess: &Self| {
            let made = guess.factors(head);
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs();
            made.len() == factors.len() && made.iter().zip(factors).all(is_near)
        };
        lengths
            .map(|original| Self { original, ..guess })
            .find(fits)
    }
}
