//! What a caller lets a file cost: [`ParseLimits`], and the account that every parser keeps of it.
//!
//! Beside these there are permanent caps, far above what real files have.

use std::cell::Cell;
use std::fmt::Display;

use crate::{AnamnesisError, Result};

/// Bounds on what a file may cost. Nothing is bounded by default but by the crate's permanent caps, which stop
/// everything that no model needs; these bounds can only be tighter.
///
/// Every bound is checked before memory is taken. Parsing has the whole of them, and so has each call that
/// materialises tensors from what was parsed.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// use anamnesis::{AnamnesisError, ParseLimits, parse_with_limits};
/// let limits = ParseLimits::default().with_max_single_alloc(64 << 20).with_max_item_count(100_000);
/// let model = parse_with_limits("tests/data/demo/model-fp8.safetensors", &limits)?;
/// # assert!(model.remember_to_bytes(anamnesis::TargetDtype::BF16).is_ok());
///
/// let none = limits.with_max_item_count(0);
/// let refused = parse_with_limits("tests/data/demo/model-fp8.safetensors", &none);
/// assert!(matches!(refused, Err(AnamnesisError::LimitExceeded { limit: "max_item_count", .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLimits {
    single_alloc: u64,
    total: u64,
    items: u64,
    ratio: u64,
}

impl ParseLimits {
    /// No bounds but the permanent caps.
    #[must_use]
    pub const fn unbounded() -> Self {
        Self {
            single_alloc: u64::MAX,
            total: u64::MAX,
            items: u64::MAX,
            ratio: u64::MAX,
        }
    }

    /// Bounds the bytes of any one piece of memory whose size a file declares.
    #[must_use]
    pub const fn with_max_single_alloc(mut self, bytes: u64) -> Self {
        self.single_alloc = bytes;
        self
    }

    /// Bounds the bytes of all of them together, and of what one call materialises.
    #[must_use]
    pub const fn with_max_total_bytes(mut self, bytes: u64) -> Self {
        self.total = bytes;
        self
    }

    /// Bounds the number of things that a file declares: tensors, keys of its metadata, members of an archive.
    #[must_use]
    pub const fn with_max_item_count(mut self, count: u64) -> Self {
        self.items = count;
        self
    }

    /// Bounds how many times its stored size a compressed member may become.
    #[must_use]
    pub const fn with_max_decompression_ratio(mut self, ratio: u64) -> Self {
        self.ratio = ratio;
        self
    }

    /// The bound on one piece of memory; `u64::MAX` if there is none.
    #[must_use]
    pub const fn max_single_alloc_bytes(&self) -> u64 {
        self.single_alloc
    }

    /// The bound on all of them together; `u64::MAX` if there is none.
    #[must_use]
    pub const fn max_total_bytes(&self) -> u64 {
        self.total
    }

    /// The bound on the number of things; `u64::MAX` if there is none.
    #[must_use]
    pub const fn max_item_count(&self) -> u64 {
        self.items
    }

    /// The bound on the growth of compressed members; `u64::MAX` if there is none.
    #[must_use]
    pub const fn max_decompression_ratio(&self) -> u64 {
        self.ratio
    }
}

impl Default for ParseLimits {
    fn default() -> Self {
        Self::unbounded()
    }
}

/// The running account of one parse, or of one call that materialises tensors. It is shared by whatever takes memory
/// for the same file.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: ParseLimits,
    total: Cell<u64>,
    items: Cell<u64>,
}

impl Budget {
    pub(crate) fn new(limits: &ParseLimits) -> Self {
        Self {
            limits: limits.clone(),
            total: Cell::new(0),
            items: Cell::new(0),
        }
    }

    /// An account that bounds nothing.
    pub(crate) fn unbounded() -> Self {
        Self::new(&ParseLimits::unbounded())
    }

    /// What it is an account of.
    pub(crate) fn limits(&self) -> &ParseLimits {
        &self.limits
    }

    /// Charges a piece of memory that is about to be taken.
    pub(crate) fn alloc(&self, bytes: u64, what: impl Display) -> Result<()> {
        self.single(bytes, &what)?;
        self.grow(bytes, what)
    }

    /// Whether a piece of memory may have so many bytes, which are charged as it grows.
    pub(crate) fn single(&self, bytes: u64, what: impl Display) -> Result<()> {
        cap(
            "max_single_alloc_bytes",
            bytes,
            self.limits.single_alloc,
            format_args!("bytes for {what}"),
        )
    }

    /// Charges what is taken in many small pieces.
    pub(crate) fn grow(&self, bytes: u64, what: impl Display) -> Result<()> {
        self.total.set(self.total.get().saturating_add(bytes));
        cap(
            "max_total_bytes",
            self.total.get(),
            self.limits.total,
            format_args!("bytes in all, with {what}"),
        )
    }

    /// Counts `n` things.
    pub(crate) fn items(&self, n: u64, of: impl Display) -> Result<()> {
        self.items.set(self.items.get().saturating_add(n));
        cap(
            "max_item_count",
            self.items.get(),
            self.limits.items,
            format_args!("items, with {n} {of}"),
        )
    }

    /// Whether `stored` compressed bytes may become `len`.
    #[cfg(any(feature = "npz", feature = "pth"))]
    pub(crate) fn ratio(&self, stored: u64, len: u64, what: impl Display) -> Result<()> {
        let times = len.div_ceil(stored.max(1));
        cap(
            "max_decompression_ratio",
            times,
            self.limits.ratio,
            format_args!("times its stored size: {what}"),
        )
    }
}

/// So many zeros, if there is room for them.
pub(crate) fn zeroed(len: u64, what: impl Display) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match usize::try_from(len)
        .ok()
        .filter(|&len| out.try_reserve_exact(len).is_ok())
    {
        Some(len) => out.resize(len, 0),
        None => {
            let message = format!("no room for {what} of {len} bytes");
            return Err(AnamnesisError::LimitExceeded {
                limit: "available_memory",
                message,
            });
        }
    }
    Ok(out)
}

/// Refuses more than `max`, whether that is a caller's bound or a permanent cap.
pub(crate) fn cap(limit: &'static str, n: u64, max: u64, what: impl Display) -> Result<()> {
    if n <= max {
        return Ok(());
    }
    Err(AnamnesisError::LimitExceeded {
        limit,
        message: format!("{n} {what}; at most {max}"),
    })
}
