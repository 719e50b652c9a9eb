//! Writing: what the reference reader reads back, or nothing at all.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use checkpoint_files::shared;
use safetensors::SafeTensors;
use tenslab::memory;
use tenslab::weights::{Checkpoint, LoadOptions, SaveEntry, SaveOptions, Weights, save, save_with};
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

#[test]
fn strided_tensors_are_gathered_whatever_their_size_and_strides() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    // 6 MiB, so that it passes through scratch in parts; and one whose rows alone are larger
    // than that, some of them packed.
    let wide = tensor(&[768, 2048], DType::F32, 0);
    let rows = tensor(&[2, 3, 400_000], DType::I16, 7);
    let cube = tensor(&[3, 4, 5], DType::F64, 9);
    let tensors = [
        ("turned", wide.transpose(0, 1).unwrap()),
        ("column", wide.slice(1, 5, 6).unwrap()),
        ("packed rows", rows.slice(1, 1, 3).unwrap()),
        ("rows", rows.slice(2, 1, 400_000).unwrap()),
        ("permuted", rows.permute(&[2, 0, 1]).unwrap()),
        ("cube", cube.permute(&[1, 2, 0]).unwrap()),
        ("nothing", cube.slice(1, 2, 2).unwrap()),
        ("plain", cube.clone()),
    ];
    let report = save(&path, &tensors, &no_metadata()).unwrap();
    let gathered = tensors.iter().filter(|(_, tensor)| !tensor.is_contiguous());
    let gathered: usize = gathered.map(|(_, tensor)| tensor.nbytes()).sum();
    // Rows of 800,000 bytes are packed, so they go as they lie.
    let as_they_lie = 4 * 800_000 + 6 * 799_998;
    assert_eq!(report.gathered_bytes, (gathered - as_they_lie) as u64);

    let bytes = fs::read(&path).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in &tensors {
        let packed = tensor.contiguous_in(memory::cpu()).unwrap();
        let view = reference.tensor(name).unwrap();
        assert_eq!(view.shape(), tensor.shape().dims());
        assert!(view.data() == &*packed.read_bytes().unwrap(), "{name}");
    }
    let packed = tensors.map(|(name, tensor)| (name, tensor.contiguous_in(memory::cpu()).unwrap()));
    assert_eq!(
        save(&path, &packed, &no_metadata()).unwrap().gathered_bytes,
        0
    );
    assert!(
        fs::read(&path).unwrap() == bytes,
        "strides make no difference to the file"
    );
}

#[test]
fn a_report_says_what_was_written() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let tensors = some();
    for replaced in [false, true] {
        let report = save(&path, &tensors, &no_metadata()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(report.tensors, tensors.len());
        assert_eq!(report.file_bytes, fs::metadata(&path).unwrap().len());
        assert_eq!(report.data_start, checkpoint.files()[0].data_start());
        assert_eq!(report.tensor_bytes, checkpoint.tensor_bytes());
        assert_eq!((report.gathered_bytes, report.replaced), (0, replaced));
        assert!(report.seconds > 0.0);
    }
}

#[test]
fn names_of_64_kib_and_of_control_characters_are_written() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let long = "\u{1}n\u{e4}\u{1f980}\"\\/".repeat(6_000);
    assert!(long.len() > 64 << 10);
    let names = [
        long.as_str(),
        "",
        "\0",
        "\u{7f}\u{2028}\r\n\t",
        "__metadata__ ",
        "a\u{feff}",
    ];
    let x = tensor(&[3], DType::BF16, 1);
    let tensors = names.map(|name| (name, x.clone()));
    let metadata = names.map(|name| (name.to_owned(), long.clone())).into();
    save(&path, &tensors, &metadata).unwrap();
    let bytes = fs::read(&path).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), names.len());
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    assert_eq!(weights.metadata(), &metadata);
    for name in names {
        let data = x.read_bytes().unwrap();
        assert_eq!(reference.tensor(name).unwrap().data(), &*data);
        assert_eq!(*weights.get(name).unwrap().read_bytes().unwrap(), *data);
    }
}

#[test]
fn progress_begins_with_nothing_ends_with_everything_and_only_grows() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let large = tensor(&[3, 1 << 20], DType::F32, 0);
    let small: Vec<_> = (0..100)
        .map(|at| (at.to_string(), tensor(&[10], DType::U8, at)))
        .collect();
    let mut entries: Vec<_> = small
        .iter()
        .map(|(name, x)| SaveEntry::tensor(name, x))
        .collect();
    entries.push(SaveEntry::tensor("large", &large));
    let mut told = Vec::new();
    let report = save_with(&path, &entries, &SaveOptions::default(), &mut |now| {
        assert!(!path.exists(), "it has no name yet");
        assert_eq!(now.total_bytes, (12 << 20) + 1000);
        told.push(now.done_bytes);
        ControlFlow::Continue(())
    });
    assert_eq!(told, [0, 4 << 20, 8 << 20, 12 << 20, (12 << 20) + 1000]);
    assert_eq!(report.unwrap().tensor_bytes, (12 << 20) + 1000);
}

#[test]
fn a_tensor_of_more_bytes_than_one_write_moves_is_written() {
    if std::env::var_os("TENSLAB_LONG").is_none() || cfg!(tenslab_asan) {
        eprintln!("skipped: writes 2.1 GiB to the disk; set TENSLAB_LONG to run it");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let bytes = 0x8600_0000_usize;
    // Fresh pages, nearly all of them never touched.
    let mut buffer = memory::cpu().allocate_zeroed(bytes, 64).unwrap();
    let marks = [0, 0x7fff_efff, 0x7fff_f000, 0x8000_0000, bytes - 1];
    for (at, mark) in marks.into_iter().zip(1..) {
        buffer.as_mut_slice()[at] = mark;
    }
    let large = Tensor::from_buffer(buffer, 0, [bytes], DType::U8).unwrap();
    let report = save(&path, &[("large", large)], &no_metadata()).unwrap();
    assert_eq!(report.tensor_bytes, bytes as u64);
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    let large = weights.raw("large").unwrap();
    let read = large.read_bytes().unwrap();
    for (at, mark) in marks.into_iter().zip(1..) {
        assert_eq!(read[at], mark);
    }
    assert_eq!(read.iter().filter(|&&byte| byte != 0).count(), marks.len());
}
