//! Quantizes the MLP weights of a model to NF4, leaves everything else as it is, and shows what it
//! cost.
//!
//! cargo run --example selection -- [MODEL]

use anamnesis::{Forget, ForgetScheme};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tests/data/guide/TinyLlama/model.safetensors".to_owned());
    let scheme = ForgetScheme::NF4;
    let mut forget = Forget::from(scheme.with_group_size(128));
    forget.include = vec!["*.mlp.*".to_owned(), "re:.*_proj".to_owned()];
    forget.exclude = vec!["lm_head*".to_owned()];

    let dir = tempfile::tempdir()?;
    let report =
        anamnesis::parse(&path)?.forget(dir.path().join("model-nf4.safetensors"), forget)?;
    for tensor in &report.encoded {
        println!("{}: {}", tensor.name, tensor.scheme);
    }
    for tensor in &report.kept {
        println!("{}: kept, {}", tensor.name, tensor.reason);
    }
    if let Some(distance) = report.distance {
        println!("relative error {:.4}", distance.all.relative);
    }
    Ok(())
}
