#![no_main]

anamnesis_fuzz::target!("gguf_header");
