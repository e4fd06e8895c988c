//! Arrays in the files of joblib. An object stands for each, and the elements lie behind the opcode
//! that gives the object its state: bytes of the array, or a pickle of its own.
//!
//! Format: joblib `joblib/numpy_pickle.py`, `NumpyArrayWrapper.read_array`.

use super::super::value::{Node, NodeId};
use super::PickleMachine;
use crate::Result;

impl PickleMachine<'_> {
    /// Passes over the elements of the array whose description is `state`, and runs those that are
    /// a pickle.
    ///
    /// # Errors
    /// `Parse` if the description does not tell where they end. The input is lost then.
    pub(super) fn pass_over_array(&mut self, state: NodeId) -> Result<()> {
        // The reader has taken a frame as a whole, so that the elements lie behind it.
        if self.input.is_in_frame(self.input.position()) {
            self.crossed_frame()?;
        }
        self.input.forget_frame();
        let Some((elements, size, is_aligned)) = self.array_of(state) else {
            return Err(self.unclear("an array of joblib whose length is unknown"));
        };
        let Some(size) = size else {
            return self.run_nested().map(drop);
        };
        if is_aligned {
            let padding = self.input.byte()?;
            self.input.take(padding.into())?;
        }
        let Some(bytes) = elements.checked_mul(size) else {
            return Err(self.unclear("an array of joblib whose length overflows"));
        };
        match self.input.pass_over(bytes)? {
            true => Ok(()),
            false => self.input.take(bytes).map(drop),
        }
    }

    /// Number of elements, bytes of each unless they are objects, and whether padding is before
    /// them.
    fn array_of(&self, state: NodeId) -> Option<(usize, Option<usize>, bool)> {
        let Node::Dict(entries) = self.values.node(state) else {
            return None;
        };
        // A handful; more are no description, and would be walked for each array.
        if entries.len() > 16 {
            return None;
        }
        let field = |name: &[u8]| {
            let is_field = |&&(key, _): &&(NodeId, NodeId)| match self.values.node(key) {
                Node::Str(key) => self.input.bytes(key) == name,
                _ => false,
            };
            entries.iter().rev().find(is_field).map(|&(_, value)| value)
        };
        let shape = self.values.sizes(field(b"shape")?)?;
        let elements = shape
            .iter()
            .try_fold(1usize, |n, &len| n.checked_mul(len))?;
        let Node::NumpyDtype(code) = self.values.node(field(b"dtype")?) else {
            return None;
        };
        let is_aligned = match field(b"numpy_array_alignment_bytes").map(|id| self.values.node(id))
        {
            None | Some(Node::None) => false,
            Some(Node::Int(_)) => true,
            Some(_) => return None,
        };
        Some((elements, element_size(self.input.bytes(code))?, is_aligned))
    }
}

/// Bytes of an element by NumPy's code of its type, such as `f4`; `Some(None)` for objects, and
/// `None` for what is no such code.
fn element_size(code: &[u8]) -> Option<Option<usize>> {
    let (kind, digits) = code.split_first()?;
    let digits = std::str::from_utf8(digits).ok()?;
    let is_plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let n: usize = digits.parse().ok().filter(|_| is_plain)?;
    match kind {
        b'O' => Some(None),
        b'b' | b'i' | b'u' | b'f' | b'c' | b'S' | b'M' | b'm' => Some(Some(n)),
        b'U' => Some(n.checked_mul(4)).filter(Option::is_some),
        // Records, which may hold objects.
        _ => None,
    }
}
