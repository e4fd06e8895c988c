//! `anamnesis`: the same program as `amn`.

fn main() -> std::process::ExitCode {
    anamnesis::cli::run()
}
