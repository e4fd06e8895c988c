//! Faults while `amn edit` changes a file in place: its name always has the old file or the new one.

use std::ffi::OsString;
use std::process::Command;

use nix::errno::Errno;

use super::tracer::{self, Fault, Plan};
use super::{DATA, Kind};
use crate::common::data;
use crate::common::directory::names_in;

/// One sector in place, and a new file whose data lie elsewhere.
#[test]
fn faults_while_a_file_is_edited() {
    let long = format!("general.name={}", "x".repeat(600));
    for (change, least) in [("general.name=Tiny", 8), (&long, 20)] {
        let root = crate::common::tempdir().unwrap();
        let path = root.path().join("m.gguf");
        let old = std::fs::read(data().join("demo/model-q4_k.gguf")).unwrap();
        std::fs::write(&path, &old).unwrap();
        let arguments = ["edit", path.to_str().unwrap(), "--set", change, "-i"];
        let arguments = arguments.map(OsString::from);
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let undisturbed = Command::new(env!("CARGO_BIN_EXE_amn"))
            .args(&arguments)
            .output();
        assert!(undisturbed.unwrap().status.success());
        let new = std::fs::read(&path).unwrap();
        let is_header = old.len() == new.len();
        for (kinds, fault) in [
            (DATA, Fault::Error(Errno::EIO)),
            (DATA, Fault::Kill),
            (&[Kind::Write], Fault::Error(Errno::ENOSPC)),
            (&[Kind::Write], Fault::Short),
            (&[Kind::Lock], Fault::Error(Errno::ENOLCK)),
        ] {
            for at in 1.. {
                std::fs::write(&path, &old).unwrap();
                let plan = Plan { kinds, fault, at: Some(at) };
                let end = tracer::run(root.path(), &arguments, plan);
                let found = std::fs::read(&path).unwrap();
                match end.code {
                    Some(0) => assert!(found == new, "{plan:?}: {end:?}"),
                    // What the disk did not confirm is written all the same.
                    Some(7) => {
                        assert!(found == old || is_header && found == new, "{plan:?}: {end:?}");
                    }
                    None => assert!(found == old || found == new, "{plan:?}: {end:?}"),
                    _ => panic!("{plan:?}: {end:?}"),
                }
                for name in names_in(root.path(), ".tmp") {
                    assert_eq!(fault, Fault::Kill, "{name} is left: {plan:?}");
                    std::fs::remove_file(root.path().join(name)).unwrap();
                }
                if end.changed.is_empty() {
                    assert!(kinds != DATA || at > least, "only {at} rows: {plan:?}");
                    break;
                }
            }
        }
    }
}
