//! Every scheme × output type × CPU level: one tensor of 1024 × 4096, read from memory, decoded on
//! one thread, written nowhere.
//!
//! `cargo bench --features benchmarks`, or with a filter: `… -- gptq4/BF16`.
#![allow(missing_docs, clippy::unwrap_used)]

mod schemes;

use anamnesis::benchable_apis::{decode, levels};
use anamnesis::{RememberOptions, TargetDtype, parse, parse_bytes};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const fn rows() -> usize {
    1024
}

const fn cols() -> usize {
    4096
}

fn kernels(criterion: &mut Criterion) {
    let scratch = tempfile::tempdir().unwrap();
    for (name, make) in schemes::files() {
        let model = match schemes::config(name) {
            Some(_) => {
                let [input, _] = schemes::write(scratch.path(), name, &make());
                parse(input)
            }
            None => parse_bytes(make()),
        };
        let model = model.unwrap();
        for target in [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32] {
            let conversion = model.plan(RememberOptions::new(target)).unwrap();
            let mut group = criterion.benchmark_group(format!("{name}/{target}"));
            group
                .throughput(Throughput::Elements((rows() * cols()) as u64))
                .sample_size(20);
            for level in levels() {
                group.bench_function(format!("{level:?}"), |b| {
                    b.iter(|| decode(&conversion, level).unwrap());
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = kernels
}
criterion_main!(benches);
