#![no_main]

anamnesis_fuzz::target!("paddle");
