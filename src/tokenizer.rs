//! Tokenizers of whole models, between the metadata of a GGUF file and the files of a Hugging Face directory.

mod to_hf;
