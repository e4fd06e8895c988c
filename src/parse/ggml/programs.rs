//! What files of ggml have before their tensors, by the program that reads them.

use super::Numbers;

/// A part of what is before the tensors.
pub(super) enum Section {
    /// A number of 32 bits for each name.
    Numbers(&'static [&'static str]),
    /// A length and so many bytes of text.
    Text(&'static str),
    /// Numbers that are passed over, of 32 bits: as many as the product says.
    Words(&'static [HeaderSize]),
    /// A length for each token and its bytes, in GGMF and GGJT its score.
    Tokens(HeaderSize),
}

/// A size of a table or of the embedding.
pub(super) enum HeaderSize {
    Number(&'static str),
    /// One more than the number.
    After(&'static str),
    Is(u64),
}

impl HeaderSize {
    pub(super) fn of(&self, numbers: &Numbers) -> u64 {
        match self {
            Self::Number(name) => numbers.get(name).copied().unwrap_or_default(),
            Self::After(name) => Self::Number(name).of(numbers) + 1,
            Self::Is(size) => *size,
        }
    }
}

/// What the files of a program have.
pub(super) struct Program {
    pub name: &'static str,
    pub sections: &'static [Section],
    /// A tensor that each file has, and its shape.
    pub embedding: (&'static str, &'static [HeaderSize]),
    /// Whether GGMF and GGJT are formats of this program.
    pub is_llama: bool,
}

use HeaderSize::{After, Is, Number};
use Section::{Numbers as N, Text, Tokens, Words};

const FILTERS: Section = N(&["filters.n_mel", "filters.n_fft"]);
const FILTER_VALUES: Section = Words(&[Number("filters.n_mel"), Number("filters.n_fft")]);
const TOKEN_COUNT: Section = N(&["tokens"]);
const COUNTED: Section = Tokens(Number("tokens"));

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "whisper.cpp",
        sections: &[
            N(&[
                "n_vocab",
                "n_audio_ctx",
                "n_audio_state",
                "n_audio_head",
                "n_audio_layer",
                "n_text_ctx",
                "n_text_state",
                "n_text_head",
                "n_text_layer",
                "n_mels",
                "ftype",
            ]),
            FILTERS,
            FILTER_VALUES,
            TOKEN_COUNT,
            COUNTED,
        ],
        embedding: ("decoder.token_embedding.weight", &[Number("n_vocab"), Number("n_text_state")]),
        is_llama: false,
    },
    Program {
        name: "whisper.cpp (voice activity)",
        sections: &[
            Text("type"),
            N(&["major", "minor", "patch", "n_window", "n_context", "n_encoder_layers"]),
            // The channels in and out, and the size of the kernel.
            Words(&[Number("n_encoder_layers"), Is(3)]),
            N(&["lstm_input_size", "lstm_hidden_size", "final_conv_in", "final_conv_out"]),
        ],
        // The four gates of the LSTM.
        embedding: ("_model.decoder.rnn.weight_ih", &[Is(512), Number("lstm_input_size")]),
        is_llama: false,
    },
    Program {
        name: "whisper.cpp (Parakeet)",
        sections: &[
            N(&[
                "n_vocab",
                "n_audio_ctx",
                "n_audio_state",
                "n_audio_head",
                "n_audio_layer",
                "n_mels",
                "ftype",
                "n_fft",
                "subsampling_factor",
                "n_subsampling_channels",
                "n_conv_kernel",
                "n_pred_dim",
                "n_pred_layers",
                "n_tdt_durations",
                "n_max_tokens",
            ]),
            FILTERS,
            FILTER_VALUES,
            N(&["n_window"]),
            Words(&[Number("n_window")]),
            Words(&[Number("n_tdt_durations")]),
            TOKEN_COUNT,
            COUNTED,
        ],
        embedding: ("decoder.prediction.embed.weight", &[After("n_vocab"), Number("n_pred_dim")]),
        is_llama: false,
    },
    Program {
        name: "llama.cpp",
        sections: &[
            N(&["n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype"]),
            Tokens(Number("n_vocab")),
        ],
        embedding: ("tok_embeddings.weight", &[Number("n_vocab"), Number("n_embd")]),
        is_llama: true,
    },
];
