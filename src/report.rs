//! What a model is, what is wrong with it, and what differs between two.

#[cfg(feature = "check")]
pub(crate) mod check;
pub(crate) mod diff;
pub mod inspect;
