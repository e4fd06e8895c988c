//! How much of a file the program reads.

use std::process::Command;

use crate::common::gguf::Gguf;

/// Bytes that `amn COMMAND FILE` reads. The kernel adds the reads of a child to those of the shell
/// that waited for it.
fn bytes_read(command: &str, file: &std::path::Path) -> u64 {
    let script = r#""$1" "$2" "$3" > /dev/null && cat /proc/$$/io"#;
    let output = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_amn"), command])
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let read = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// Listings of a model read its header, and of 64 MiB of tensors nothing.
#[test]
fn listings_read_the_header_alone() {
    let dir = crate::common::tempdir().unwrap();
    let data: u64 = 64 << 20;
    let header = Gguf::default()
        .text("general.architecture", "llama")
        .tensor("blk.0.ffn_up.weight", 0, &[4096, 4096], &[])
        .header();
    let gguf = (dir.path().join("model.gguf"), header);
    let json = format!(
        r#"{{"X.weight":{{"dtype":"F32","shape":[4096,4096],"data_offsets":[0,{data}]}}}}"#
    );
    let header = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let safetensors = (dir.path().join("model.safetensors"), header);
    for (path, header) in [gguf, safetensors] {
        std::fs::write(&path, &header).unwrap();
        // Sparse: the data takes no room on the disk.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(header.len() as u64 + data).unwrap();
        for command in ["inspect", "parse"] {
            let read = bytes_read(command, &path);
            // Besides the header, the loader reads libraries, and the runtime its maps.
            assert!(read < 256 << 10, "{command} {path:?}: {read} bytes");
        }
    }
}
