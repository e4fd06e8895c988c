//! The interface of the published crate: thin views on the one model, and functions for single
//! tensors. No second reader, decoder or encoder lies behind them.
//!
//! The modules `parse`, `remember`, `lethe` and `model` export these names.

#[cfg(feature = "bnb")]
pub mod bnb_file;
pub mod dequantize;
#[cfg(feature = "bnb")]
pub mod encode;
#[cfg(feature = "gguf")]
pub mod gguf;
#[cfg(feature = "npz")]
pub mod npz;
#[cfg(feature = "pth")]
pub mod pth;
pub mod round_trip;
pub mod safetensors;
mod serialize;
mod slabs;
pub(crate) mod whole;
