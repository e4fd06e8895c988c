//! [`Bnb4StateText`]: the JSON of a `quant_state` that is written, as bitsandbytes writes it.

use crate::TargetDtype;

/// Length of the longest text that [`python_float`] makes of an F32.
pub(crate) const MAX_FLOAT_LEN: usize = 24;

/// What a `quant_state` says of a 4-bit weight.
pub(crate) struct Bnb4StateText<'a> {
    /// `nf4` or `fp4`.
    pub quant_type: &'a str,
    pub block: usize,
    /// Type of the values that were encoded.
    pub dtype: TargetDtype,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// The mean of the scales, if they are double-quantized.
    pub nested_offset: Option<f32>,
}

impl Bnb4StateText<'_> {
    /// The JSON, as Python's `json.dumps` writes it.
    ///
    /// The length of the stored tensor must be known before the survey pass has found the offset.
    /// So the text of double quantization is padded with blanks, which JSON allows at its end, to
    /// the longest that it can become.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // The keys and their order are those of `QuantState.as_dict`, so that the bytes are the
        // library's as far as the offset allows.
        let (kind, block, dtype) = (self.quant_type, self.block, self.dtype.torch_name());
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let shape = shape.join(", ");
        let mut text = format!(
            r#"{{"quant_type": "{kind}", "blocksize": {block}, "dtype": "{dtype}", "shape": [{shape}]"#
        );
        if let Some(offset) = self.nested_offset {
            text += r#", "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": "#;
            // The brace that closes the object follows the number, hence the one more.
            let end = text.len() + MAX_FLOAT_LEN + 1;
            text += &python_float(offset);
            text.push('}');
            return format!("{text:end$}").into_bytes();
        }
        text.push('}');
        text.into_bytes()
    }
}

/// The text that Python's `repr` makes of a float: Rust's, but with a sign and at least two digits
/// in the exponent.
pub(crate) fn python_float(x: f32) -> String {
    // `nested_offset` is an F32 that Python has as a float of 64 bits, so its digits are those of
    // the widened value.
    let text = format!("{:?}", f64::from(x));
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}
