#![no_main]

anamnesis_fuzz::target!("hdf5");
