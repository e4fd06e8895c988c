//! [`Gated`]: what a feature builds in, or the feature's name in a build that leaves it out.

use crate::{AnamnesisError, Result};

/// An item that needs a feature. Tables hold it, so that each row is there in every build and needs
/// no condition.
pub(crate) struct Gated<T> {
    /// Name of the feature; empty if the item is always built in.
    feature: &'static str,
    item: Option<T>,
}

impl<T> Gated<T> {
    /// An item that needs no feature.
    pub(crate) const fn always(item: T) -> Self {
        Self::new("", Some(item))
    }

    /// What [`gated!`] expands to.
    pub(crate) const fn new(feature: &'static str, item: Option<T>) -> Self {
        Self { feature, item }
    }

    /// The item; `None` if this build leaves it out.
    pub(crate) const fn built_in(&self) -> Option<&T> {
        self.item.as_ref()
    }

    /// The item, which is needed for `what`.
    ///
    /// # Errors
    /// `Unsupported` with the feature's name if this build leaves it out.
    pub(crate) fn require(&self, what: &str) -> Result<&T> {
        self.built_in()
            .ok_or_else(|| AnamnesisError::missing_feature(what, self.feature))
    }
}

/// A [`Gated`] item: `gated!("gguf", item)`, or with a condition and what messages name. Without
/// the feature, the item's path is not looked up, so its module can be left out, too.
macro_rules! gated {
    ($feature:literal, $item:expr) => {
        $crate::features::gated!(feature = $feature, $feature, $item)
    };
    ($condition:meta, $features:literal, $item:expr) => {
        $crate::features::Gated::new($features, {
            #[cfg($condition)]
            {
                Some($item)
            }
            #[cfg(not($condition))]
            {
                None
            }
        })
    };
}
pub(crate) use gated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_left_out_item_names_its_feature() {
        let left_out: Gated<u8> = gated!(any(), "acme` and `lethe", 1);
        assert_eq!(left_out.built_in(), None);
        let error = left_out.require("writing ACME").unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsupported format `writing ACME`: needs the feature `acme` and `lethe`, which this build leaves out"
        );
        let built_in: Gated<u8> = gated!(all(), "acme", 1);
        assert_eq!(built_in.require("writing ACME").unwrap(), &1);
    }
}
