//! Encode arithmetic, one file a scheme, mirroring `remember/`. Kernels take slices and know no tensor names.

#[cfg(feature = "qnat")]
pub(crate) mod qnat;
