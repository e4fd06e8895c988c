#![no_main]

anamnesis_fuzz::target!("round_trip");
