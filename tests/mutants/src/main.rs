//! Puts mutants into the source of a copy of this repository: `mutants DIR COUNT SEED [DROPPED…]`. All are compiled at once, and
//! the environment variable `MUTANT` chooses the one that is awake. One line of JSON a mutant goes to the standard output.
//! `run` beside this package does the rest.

mod find;
mod sample;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use find::{Edit, Mutant};

/// What is mutated: readers, decoders, encoders, what is known of models, and what plans them.
const ROOMS: [&str; 7] = ["parse", "remember", "lethe", "families", "config", "model", "tokenizer"];

/// The module that each mutant asks.
const SWITCH: &str = include_str!("switch.rs");

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Failure> {
    let [root, count, seed, dropped @ ..] = args else {
        return Err("mutants DIR COUNT SEED [DROPPED…]".into());
    };
    let root = Path::new(root);
    let mut found = Vec::new();
    for room in ROOMS {
        for file in sources_of(&root.join("src"), room)? {
            found.extend(find::mutants_of(root, &file)?);
        }
    }
    let mut chosen = sample::of(found, count.parse()?, seed.parse()?);
    for number in dropped {
        let number: usize = number.parse()?;
        chosen
            .get_mut(number)
            .ok_or("no such mutant")?
            .edits
            .clear();
    }
    insert(root, &chosen)?;
    fs::write(root.join("src/mutants.rs"), SWITCH.replace("COUNT", &chosen.len().to_string()))?;
    let lib = root.join("src/lib.rs");
    let text = fs::read_to_string(&lib)?;
    fs::write(lib, text + "\nmod mutants;\n")?;
    for (number, mutant) in chosen.iter().enumerate() {
        let Mutant { file, line, end, what, text, edits } = mutant;
        let alive = !edits.is_empty();
        let row = serde_json::json!({
            "number": number, "file": file, "line": line, "end": end, "what": what, "text": text, "alive": alive,
        });
        println!("{row}");
    }
    Ok(())
}

/// `src/ROOM.rs` and all files below `src/ROOM`, without those of tests.
fn sources_of(src: &Path, room: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut files = vec![src.join(format!("{room}.rs"))];
    let mut folders = vec![src.join(room)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path
                .file_stem()
                .is_some_and(|stem| stem == "tests" || stem == "test_utils")
            {
                continue;
            }
            match path.extension() {
                None => folders.push(path),
                Some(_) => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Writes the files with the mutants in them. Lines keep their numbers, by which the compiler's errors tell the mutants.
fn insert(root: &Path, chosen: &[Mutant]) -> Result<(), Failure> {
    let mut files: Vec<&str> = chosen.iter().map(|mutant| mutant.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let path = root.join(file);
        let mut text = fs::read_to_string(&path)?;
        let mut edits: Vec<(&Edit, usize)> = Vec::new();
        for (number, mutant) in chosen.iter().enumerate() {
            if mutant.file == file {
                edits.extend(mutant.edits.iter().map(|edit| (edit, number)));
            }
        }
        // From the end, so that positions stay true. At one position the outermost mutant's text has to come first.
        edits.sort_by_key(|(edit, _)| (edit.at, edit.rank));
        for (edit, number) in edits.iter().rev() {
            text.insert_str(edit.at, &edit.text.replace('#', &number.to_string()));
        }
        fs::write(&path, text)?;
    }
    Ok(())
}
