//! Zstandard, as chunks of Zarr and nodes of TensorStore are compressed.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Largest window that is read. Compressors have 8 MiB at most, but for levels that are asked for as `ultra`.
const MAX_WINDOW: u64 = 16 << 20;

/// What Zstandard has made the frame `compressed` of.
///
/// # Errors
/// `InvalidData` if it begins no frame, or one that needs more memory than is given.
pub(crate) fn zstd_decoder<R: BufRead>(compressed: R) -> io::Result<impl Read> {
    let decoder = StreamingDecoder::new_with_max_window_size(compressed, MAX_WINDOW);
    let decoder = decoder.map_err(|_| {
        let what = "it is no frame of Zstandard, or one with a window of more than 16 MiB";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    Ok(OneFrame(decoder))
}

/// A frame, behind which there is nothing.
struct OneFrame<R: Read>(StreamingDecoder<R, FrameDecoder>);

impl<R: BufRead> Read for OneFrame<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(out)?;
        if n == 0 && !out.is_empty() && !self.0.get_mut().fill_buf()?.is_empty() {
            let what = "there is something behind its frame";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(n)
    }
}
