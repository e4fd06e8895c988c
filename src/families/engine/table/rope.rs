//! What a class has in rotary positions of its own.

/// Rotary positions of a class, as far as they are not those of a config alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeTraits {
    /// The part of each head that rotates where a config does not say it; `None`: all of it,
    /// always.
    pub partial: Option<f64>,
    /// Layers with a window have a rope of their own in transformers.
    pub by_kind: bool,
    /// Of classes with factors for heads of which a part rotates: whole heads may rotate, too, without
    /// factors.
    pub may_be_whole: bool,
    /// Where a config states no base, transformers 4 takes another than transformers 5.
    pub has_two_bases: bool,
    /// GGUF has no settings of rope: llama.cpp takes the class's defaults.
    pub is_fixed: bool,
    /// Scalings that other classes have not, or have otherwise.
    pub scalings: &'static [OwnScaling],
}

/// A scaling of rotary positions that not every class has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnScaling {
    /// Llama 3's, whose factors are stored as a tensor.
    Llama3,
    /// Factors for long and for short texts, which are tensors of GGUF.
    Long,
    /// `dynamic` with an `alpha`, which raises the base.
    Alpha,
    /// Published models do not round YaRN's bounds (`truncate` is false). GGUF does not say it, and
    /// a config without a scaling has such YaRN.
    ExactYarn,
    /// Published models have other bounds of YaRN than llama.cpp. GGUF says them, and llama.cpp
    /// does not read them.
    LostBounds,
}

impl RopeTraits {
    pub(crate) const PLAIN: Self = Self {
        partial: None,
        by_kind: false,
        may_be_whole: false,
        has_two_bases: false,
        is_fixed: false,
        scalings: &[],
    };
    pub(crate) const FIXED: Self = Self { is_fixed: true, ..Self::PLAIN };
    pub(crate) const BY_KIND: Self = Self { by_kind: true, ..Self::PLAIN };
    pub(crate) const LLAMA3: Self = Self { scalings: &[OwnScaling::Llama3], ..Self::PLAIN };

    /// Of classes in which `part` of each head rotates where a config does not say it.
    pub(crate) const fn partial(part: f64) -> Self {
        Self { partial: Some(part), ..Self::PLAIN }
    }

    pub(crate) fn has(&self, scaling: OwnScaling) -> bool {
        self.scalings.contains(&scaling)
    }
}
