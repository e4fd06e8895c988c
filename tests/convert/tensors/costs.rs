//! What single tensors cost: bytes that are read, and time.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anamnesis::{ParsedModel, RememberOptions, TargetDtype, parse_bytes};

use super::many_tiles;
use crate::common::{f32s, file, raw};

/// A reader that counts the bytes that it gives.
pub(in super::super) struct Counted<R> {
    pub reader: R,
    pub bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(out)?;
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl<R: Seek> Seek for Counted<R> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.reader.seek(to)
    }
}

#[test]
fn only_what_a_tensor_needs_is_read() {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut written, &file(&many_tiles(), &[])).unwrap();
    let bytes = Arc::new(AtomicU64::new(0));
    let reader = Counted { reader: written.reopen().unwrap(), bytes: bytes.clone() };
    let model = anamnesis::parse_from_reader(reader).unwrap();
    let run = RememberOptions::new(TargetDtype::F32).with_threads(2);
    let conversion = model.plan(run).unwrap();
    let read = |what: &dyn Fn()| {
        bytes.store(0, Ordering::Relaxed);
        what();
        bytes.load(Ordering::Relaxed)
    };
    let listed = read(&|| assert_eq!(conversion.outputs().count(), 6));
    assert_eq!(listed, 0);
    let whole = read(&|| drop(conversion.tensor("a.weight").unwrap()));
    assert!((1_400_000..1_600_000).contains(&whole), "{whole} bytes");
    let row = read(&|| drop(conversion.rows("a.weight", 350..351).unwrap()));
    assert!(row < 400_000, "{row} bytes for a row");
    let small = read(&|| drop(conversion.tensor("bytes").unwrap()));
    assert!(small < 70_000, "{small} bytes");
}

const MANY: usize = 30_000;

/// Small tensors of which half are quantized, as many as large models of experts have.
fn many() -> ParsedModel {
    let mut tensors = Vec::with_capacity(MANY);
    for i in 0..MANY / 2 {
        let module = format!("model.layers.{}.mlp.experts.{}.proj", i / 256, i % 256);
        let scale = f32s(&[0.5]);
        tensors.push(raw(&format!("{module}.weight"), "F8_E4M3", &[4, 4], vec![0x38; 16]));
        tensors.push(raw(&format!("{module}.weight_scale"), "F32", &[], scale));
    }
    parse_bytes(file(&tensors, &[])).unwrap()
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// A plan is made once. What comes after must not cost another for each tensor.
#[test]
fn many_tensors_by_name() {
    let model = many();
    let (conversion, planning) = timed(|| model.plan(TargetDtype::F32).unwrap());
    let names: Vec<String> = conversion.outputs().map(|t| t.name.to_owned()).collect();
    assert_eq!(names.len(), MANY / 2);
    let ((), thousand) = timed(|| {
        for name in names.iter().step_by(names.len() / 1000) {
            assert_eq!(conversion.tensor(name).unwrap(), f32s(&[0.5; 16]));
        }
    });
    println!("planning {planning:?}, 1000 tensors {thousand:?}");
    assert!(thousand < planning * 5, "{planning:?}, then {thousand:?}");
    let (found, all) = timed(|| names.iter().filter(|n| model.tensor(n).is_some()).count());
    let ((), roles) = timed(|| {
        for tensor in model.tensors() {
            assert_ne!(tensor.role(), anamnesis::TensorRole::Passthrough);
        }
    });
    println!("all names of a model {all:?}, all roles {roles:?}");
    assert_eq!(found, MANY / 2);
    assert!(all < planning, "{all:?} for {found} names");
    assert!(roles < planning * 5, "{roles:?}");
}
