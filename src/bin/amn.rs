//! `amn`: the command line of `anamnesis`.

fn main() -> std::process::ExitCode {
    anamnesis::cli::run()
}
