#![no_main]

anamnesis_fuzz::target!("openvino");
