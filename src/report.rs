//! What a model is, what is wrong with it, and what differs between two.

#[cfg(feature = "check")]
pub mod check;
pub mod diff;
pub mod inspect;
