//! Writing: what the reference reader reads back, or nothing at all.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

mod checkpoint_files;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use checkpoint_files::shared;
use safetensors::SafeTensors;
use tenslab::memory;
use tenslab::tensor::TensorError;
use tenslab::weights::{Checkpoint, LoadOptions, Weights, WeightsError, save};
use tenslab::{DType, Shape, Tensor};

/// A tensor whose bytes count up from `first`.
fn tensor(shape: &[usize], dtype: DType, first: u8) -> Tensor {
    let shape = Shape::from_dims(shape).unwrap();
    let bytes = shape.numel() * dtype.bytes();
    let mut buffer = memory::cpu().allocate(bytes, 64).unwrap();
    for (byte, at) in buffer.as_mut_slice().iter_mut().zip((0..=255).cycle()) {
        *byte = first.wrapping_add(at);
    }
    Tensor::from_buffer(buffer, 0, shape, dtype).unwrap()
}

fn no_metadata() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// One tensor of every dtype that there are tensors of, in several shapes.
fn some() -> Vec<(String, Tensor)> {
    let mut tensors = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        for (at, shape) in [&[][..], &[3], &[0, 2], &[2, 1, 3]].into_iter().enumerate() {
            let name = format!("{dtype}/\u{e9}\"\\\n{at}");
            tensors.push((name, tensor(shape, dtype, dtype.code() * 16)));
        }
    }
    tensors
}

#[test]
fn the_reference_reader_reads_back_what_was_written() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let tensors = some();
    let metadata = BTreeMap::from([
        ("format".into(), "pt".into()),
        ("".into(), "\0\u{e9}".into()),
    ]);
    save(&path, &tensors, &metadata).unwrap();

    let bytes = fs::read(&path).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), tensors.len());
    for (name, tensor) in &tensors {
        let view = reference.tensor(name).unwrap();
        assert_eq!(
            view.dtype().to_string(),
            tensor.dtype().safetensors_tag().unwrap()
        );
        assert_eq!(view.shape(), tensor.shape().dims());
        assert_eq!(view.data(), &*tensor.read_bytes().unwrap(), "{name:?}");
    }
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let found: BTreeMap<_, _> = header.metadata().clone().unwrap().into_iter().collect();
    assert_eq!(found, metadata);

    // And so do we.
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    assert_eq!(weights.metadata(), &metadata);
    for (name, tensor) in &tensors {
        let found = weights.get(name).unwrap();
        assert_eq!(
            (found.shape(), found.dtype()),
            (tensor.shape(), tensor.dtype())
        );
        assert_eq!(*found.read_bytes().unwrap(), *tensor.read_bytes().unwrap());
    }
}

#[test]
fn everything_is_aligned_and_the_order_of_the_arguments_does_not_matter() {
    let place = tempfile::tempdir().unwrap();
    let mut tensors = some();
    let path = place.path().join("a");
    save(&path, &tensors, &no_metadata()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.files()[0].data_start() % 64, 0);
    for entry in checkpoint.entries() {
        let width = entry.dtype().host().unwrap().bytes() as u64;
        assert_eq!(entry.offset() % width, 0, "{:?}", entry.name());
    }
    let first = fs::read(&path).unwrap();
    tensors.reverse();
    save(&path, &tensors, &no_metadata()).unwrap();
    assert!(fs::read(&path).unwrap() == first);
    assert_eq!(files(place.path()), ["a"]);
}

#[test]
fn no_tensor_at_all_is_a_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("none");
    save::<&str>(&path, &[], &no_metadata()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 64);
    assert!(
        SafeTensors::deserialize(&fs::read(&path).unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_checkpoint_that_was_loaded_is_written_back_the_same() {
    let Some(path) = shared("models/tiny-llama/bf16") else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("model.safetensors");
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    let tensors: Vec<_> = weights
        .names()
        .map(|n| (n, weights.get(n).unwrap()))
        .collect();
    save(&copy, &tensors, weights.metadata()).unwrap();
    let again = Weights::load(&copy, &LoadOptions::default()).unwrap();
    assert_eq!(again.names().count(), tensors.len());
    for (name, tensor) in &tensors {
        let found = again.get(name).unwrap();
        assert!(
            *found.read_bytes().unwrap() == *tensor.read_bytes().unwrap(),
            "{name}"
        );
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_the_disk_is_touched() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    fs::write(&path, "what was there").unwrap();
    let x = tensor(&[2, 2], DType::F32, 0);
    let save = |tensors: &[(&str, Tensor)]| save(&path, tensors, &no_metadata()).unwrap_err();

    let twice = save(&[("x", x.clone()), ("y", x.clone()), ("x", x.clone())]);
    assert!(matches!(twice, WeightsError::InvalidName { name, .. } if name == "x"));
    let reserved = save(&[("__metadata__", x.clone())]);
    assert!(matches!(reserved, WeightsError::InvalidName { .. }));
    let column = save(&[("column", x.slice(1, 0, 1).unwrap())]);
    assert!(matches!(
        column,
        WeightsError::Tensor { name, source: TensorError::NotContiguous { .. } } if name == "column"
    ));
    let writer = x.write::<f32>().unwrap();
    let busy = save(&[("x", x.clone())]);
    assert!(matches!(
        busy,
        WeightsError::Tensor {
            source: TensorError::Borrow(_),
            ..
        }
    ));
    drop(writer);

    assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
    assert_eq!(files(place.path()), ["model.safetensors"]);
}

#[test]
fn a_place_that_cannot_be_written_to_is_an_error_and_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let x = || [("x", tensor(&[2], DType::F32, 0))];
    let nowhere = place.path().join("no/such/directory/model.safetensors");
    assert!(matches!(
        save(&nowhere, &x(), &no_metadata()),
        Err(WeightsError::Io { action: "create", path, .. }) if path == nowhere
    ));
    // The rename is what fails here: a directory has the name.
    let taken = place.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(matches!(
        save(&taken, &x(), &no_metadata()),
        Err(WeightsError::Io { .. })
    ));
    assert!(matches!(
        save("..", &x(), &no_metadata()),
        Err(WeightsError::Io { .. })
    ));
    assert_eq!(files(place.path()), ["taken"]);
}

#[test]
fn several_threads_may_write_one_file_and_one_of_them_wins() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    std::thread::scope(|scope| {
        for first in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..5 {
                    let x = tensor(&[1000], DType::F32, first);
                    save(path, &[("x", x)], &no_metadata()).unwrap();
                }
            });
        }
    });
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    let bytes = weights.raw("x").unwrap().read_bytes().unwrap().to_vec();
    assert!(
        bytes[0] < 4
            && bytes
                .iter()
                .zip(&bytes[1..])
                .all(|(a, b)| a.wrapping_add(1) == *b)
    );
    assert_eq!(files(place.path()), ["model.safetensors"]);
}

const FULL: &str = "TENSLAB_FULL_DISK";

/// What runs on the full disk: not a test of its own, it runs only when it is told where.
#[test]
fn child_that_fills_a_disk() {
    let Ok(directory) = std::env::var(FULL) else {
        return;
    };
    let directory = Path::new(&directory);
    let path = directory.join("model.safetensors");
    fs::write(&path, "what was there").unwrap();
    let large = [("x", tensor(&[50_000], DType::F32, 0))];
    let error = save(&path, &large, &no_metadata()).unwrap_err();
    assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
    assert_eq!(files(directory), ["model.safetensors"]);
    println!("FULL {error}");
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    // A mount of its own, in a namespace of its own: it goes when the child goes.
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=64k full \"$1\" || exit 77; shift; exec \"$@\"")
        .arg("sh")
        .arg(place.path())
        .arg(program)
        .args(["--exact", "child_that_fills_a_disk", "--nocapture"])
        .env(FULL, place.path())
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: there is no `unshare` to make a small disk with");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || errors.starts_with("unshare:") {
        eprintln!("skipped: no tmpfs can be mounted here: {errors}");
        return;
    }
    let said = text.lines().find_map(|line| line.split_once("FULL "));
    let (_, message) = said.unwrap_or_else(|| panic!("{text}{errors}"));
    assert!(
        message.contains("model.safetensors: cannot write: No space left"),
        "{message}"
    );
}
