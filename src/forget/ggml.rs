//! GGUF: a tensor becomes one of the same name, in blocks.

use super::{Encode, Method, Put, Scope, Stored, Values, Weight};
use crate::element::Out;
use crate::lethe::ggml::{Encoder, encoder};
use crate::remember::ggml::{Decoder, decoder};
use crate::scheme::Grid;
use crate::{AnamnesisError, Dtype, Result};

/// Encoding into a block type.
pub(crate) struct Ggml {
    pub dtype: Dtype,
}

/// Longest row that is encoded as a whole.
const LONGEST_ROW: usize = 1 << 19;

impl Method for Ggml {
    fn name(&self) -> String {
        self.dtype.to_string()
    }

    fn scope(&self) -> Scope {
        Scope::LinearAndEmbeddings
    }

    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        let block = self.dtype.block_size();
        match weight.shape {
            [] | [_] => Some("it has one dimension".to_owned()),
            [.., cols] if !cols.is_multiple_of(block) => Some(format!("its {cols} columns are no multiple of {block}")),
            [.., cols] if *cols > LONGEST_ROW => Some(format!("its rows are longer than {LONGEST_ROW}")),
            _ => None,
        }
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (Some(encoder), Some(decoder), Some(bytes)) =
            (encoder(self.dtype), decoder(self.dtype), self.dtype.type_size())
        else {
            return Err(AnamnesisError::unsupported(self.name(), "nothing is encoded to it"));
        };
        let stored = Stored { name: weight.name.to_owned(), dtype: self.dtype, shape: weight.shape.to_vec() };
        let (rows, cols) = (weight.rows(), weight.cols());
        Ok(Box::new(Blocks { stored, encoder, decoder, rows, cols, row_bytes: cols / self.dtype.block_size() * bytes }))
    }
}

/// A tensor of blocks.
struct Blocks {
    stored: Stored,
    encoder: Encoder,
    decoder: Decoder,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl Encode for Blocks {
    fn stored(&self) -> Vec<Stored> {
        vec![self.stored.clone()]
    }

    fn grid(&self) -> Grid {
        Grid { rows: self.rows, cols: self.cols, row_align: 1, col_align: self.cols, load_bits: 8.0, transposed: false }
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let tile = values.tile;
        let mut bytes = vec![0; tile.rows.len() * self.row_bytes];
        (self.encoder)(values.values, self.cols, None, values.level, &mut bytes);
        (self.decoder)(&bytes, None, values.level, Out::F32(back));
        put(0, (tile.rows.start * self.row_bytes) as u64, &bytes)
    }
}
