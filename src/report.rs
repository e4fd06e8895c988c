//! What a model is, what is wrong with it, and what differs between two.

#[cfg(feature = "check")]
pub mod check;
pub mod diff;
#[cfg(feature = "cli")]
pub mod distribution;
pub mod inspect;
