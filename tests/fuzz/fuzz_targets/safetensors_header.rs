#![no_main]

anamnesis_fuzz::target!("safetensors_header");
