//! How much of a long sweep is tried, in unit tests and, by this path, in the test programs.

/// One of three numbers of cases of a long sweep: that of `cargo test`, that of the gate, which sets
/// `ANAMNESIS_TESTS=gate`, or that of `ANAMNESIS_TESTS=all`.
pub fn effort<T>([part, gate, all]: [T; 3]) -> T {
    match std::env::var("ANAMNESIS_TESTS").as_deref() {
        Err(_) => part,
        Ok("gate") => gate,
        Ok("all") => all,
        Ok(other) => panic!("ANAMNESIS_TESTS is `{other}`, neither `gate` nor `all`"),
    }
}
