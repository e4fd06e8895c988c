//! How a class has layers that predict further tokens.

/// What becomes of layers that predict further tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prediction {
    /// The class has none.
    Unknown,
    /// llama.cpp's converter leaves them out.
    LeftOut,
    /// They are layers of the GGUF file. `num_nextn_predict_layers` counts them.
    Kept,
    /// As [`Kept`](Self::Kept), and the class that a file comes back as has none.
    KeptInGguf,
    /// They are layers of the GGUF file, and have names of their own in transformers.
    Apart(&'static PredictionNames),
}

/// How a class names the layer that predicts a further token, if not by a number behind the last
/// layer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PredictionNames {
    /// Field of the number of such layers. llama.cpp has at most one in classes that name it so.
    pub count: &'static str,
    /// The kinds of the layer.
    pub kinds: &'static [&'static str],
    /// What names of layers begin with, in front of their number.
    pub layers: &'static str,
    /// What names begin with in transformers, and behind the number of the layer. The first that
    /// fits counts.
    pub names: &'static [(&'static str, &'static str)],
}
