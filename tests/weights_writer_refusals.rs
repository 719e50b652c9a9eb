//! What the writer refuses, and what is there then: what was there before.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tenslab::tensor::TensorError;
use tenslab::weights::{
    Checkpoint, FormatFault, HeaderLimits, SaveEntry, SaveOptions, SaveProgress, WeightsError,
    save, save_with,
};
use tenslab::{DType, Shape, Tensor, memory, ops};

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

/// Progress that nobody looks at.
fn go_on(_: SaveProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
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
    // Another one is fine, and stands before them. A column is not contiguous.
    let (other, column) = (tensor(&[2], DType::F32, 0), x.slice(1, 0, 1).unwrap());
    let writer = x.write::<f32>().unwrap();
    for busy in [x.clone(), column] {
        let error = save(&[("a", other.clone()), ("busy", busy)]);
        assert!(matches!(
            error,
            WeightsError::Tensor { name, source: TensorError::Borrow(_) } if name == "busy"
        ));
    }
    drop(writer);
    assert!(other.write::<f32>().is_ok(), "its borrow went back");

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
        Err(WeightsError::Io { action: "open", path, .. }) if path == nowhere.parent().unwrap()
    ));
    let unsynced = SaveOptions {
        sync: false,
        ..SaveOptions::default()
    };
    assert!(matches!(
        save_with(&nowhere, &[], &unsynced, &mut go_on),
        Err(WeightsError::Io { action: "create", path, .. }) if path == nowhere
    ));
    let taken = place.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(matches!(
        save(&taken, &x(), &no_metadata()),
        Err(WeightsError::Io { .. })
    ));
    let slash = format!("{}/new/", place.path().display());
    for no_file in ["", ".", "..", "/", &slash] {
        let error = save(no_file, &x(), &no_metadata()).unwrap_err();
        assert!(
            matches!(error, WeightsError::Io { .. }),
            "{no_file}: {error}"
        );
    }
    assert_eq!(files(place.path()), ["taken"]);
}

#[test]
fn a_header_that_readers_would_not_take_is_refused_with_the_numbers() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let x = tensor(&[2], DType::F32, 0);
    let entries = [SaveEntry::tensor("x", &x), SaveEntry::tensor("y", &x)];
    let save = |limits| {
        let options = SaveOptions {
            limits,
            ..SaveOptions::default()
        };
        save_with(&path, &entries, &options, &mut go_on)
    };
    let limits = |max_header_bytes, max_tensors| HeaderLimits {
        max_header_bytes,
        max_tensors,
        ..HeaderLimits::default()
    };
    // 8 + 120 bytes: two lines of 64.
    let error = save(limits(119, 2)).unwrap_err();
    assert!(matches!(
        error,
        WeightsError::HeaderTooLong {
            header_bytes: 120,
            max_bytes: 119,
            ..
        }
    ));
    let message = error.to_string();
    assert!(
        message.contains("120 bytes, and readers take 119"),
        "{message}"
    );
    let error = save(limits(120, 1)).unwrap_err();
    assert!(matches!(
        error,
        WeightsError::Format { fault, .. } if matches!(*fault, FormatFault::TooManyTensors { max_tensors: 1 })
    ));
    assert!(files(place.path()).is_empty());
    save(limits(120, 2)).unwrap();

    // What our own reader takes if it is not told otherwise, and the format's own limit: names
    // as long as they.
    for limits in [HeaderLimits::default(), HeaderLimits::of_format()] {
        let most = limits.max_header_bytes;
        let name = "x".repeat(usize::try_from(most).unwrap());
        let options = SaveOptions {
            limits,
            ..SaveOptions::default()
        };
        let entries = [SaveEntry::tensor(&name, &x)];
        let error = save_with(&path, &entries, &options, &mut go_on);
        let Err(WeightsError::HeaderTooLong {
            header_bytes,
            max_bytes,
            ..
        }) = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(max_bytes, most);
        assert!(
            (most + 1..most + 200).contains(&header_bytes),
            "{header_bytes}"
        );
    }
    assert_eq!(Checkpoint::open(&path).unwrap().entries().len(), 2);
}

#[test]
fn raw_bytes_that_do_not_fit_their_shape_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let save = |tag, shape: &[usize], bytes: &[u8]| {
        let entries = [SaveEntry::raw("q", tag, shape, bytes)];
        match save_with(&path, &entries, &SaveOptions::default(), &mut go_on) {
            Err(WeightsError::Format { fault, .. }) => Err(*fault),
            other => Ok(other.unwrap()),
        }
    };
    assert!(matches!(
        save("F8_E4M3", &[2, 2], &[0; 5]),
        Err(FormatFault::WrongLength { name, expected_bytes: 4, range_bytes: 5, .. }) if name == "q"
    ));
    assert!(matches!(
        save("F4", &[3], &[0; 2]),
        Err(FormatFault::PartialByte { total_bits: 12, .. })
    ));
    for shape in [&[1; 9][..], &[usize::MAX, 2, 0]] {
        let error = save("U8", shape, &[0]);
        assert!(
            matches!(error, Err(FormatFault::InvalidShape { .. })),
            "{error:?}"
        );
    }
    assert!(files(place.path()).is_empty());
    // A tag that nobody knows is not ours to judge.
    assert_eq!(save("F128", &[3], &[0; 5]).unwrap().tensor_bytes, 5);
    assert_eq!(
        Checkpoint::open(&path)
            .unwrap()
            .entries()
            .get(0)
            .unwrap()
            .dtype()
            .tag(),
        "F128"
    );
}

#[test]
fn whoever_breaks_off_or_panics_in_between_leaves_what_was_there() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    fs::write(&path, "what was there").unwrap();
    let x = tensor(&[5, 1 << 20], DType::U16, 0);
    let entries = [SaveEntry::tensor("x", &x)];
    let total = 10 << 20;
    // At the beginning, in the middle, at the end.
    for at in [0, 4 << 20, total] {
        let error = save_with(
            &path,
            &entries,
            &SaveOptions::default(),
            &mut |now| match now.done_bytes == at {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        );
        assert!(matches!(
            error,
            Err(WeightsError::Cancelled { done_bytes, total_bytes, .. })
                if (done_bytes, total_bytes) == (at, total)
        ));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            save_with(&path, &entries, &SaveOptions::default(), &mut |now| {
                assert!(now.done_bytes != at, "the caller's own trouble");
                ControlFlow::Continue(())
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
        assert_eq!(files(place.path()), ["model.safetensors"]);
        x.write::<u16>().expect("the borrow went back");
    }
    save_with(&path, &entries, &SaveOptions::default(), &mut go_on).unwrap();
}

#[test]
fn a_tensor_is_borrowed_while_it_is_written() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let x = tensor(&[4, 4], DType::F32, 0);
    let turned = x.transpose(0, 1).unwrap();
    for tensor in [&x, &turned] {
        let entries = [SaveEntry::tensor("x", tensor)];
        save_with(&path, &entries, &SaveOptions::default(), &mut |_| {
            assert!(x.write::<f32>().is_err());
            assert!(x.read::<f32>().is_ok());
            ControlFlow::Continue(())
        })
        .unwrap();
        ops::fill(&x, 1.0_f32).expect("nobody has it now");
    }
}
