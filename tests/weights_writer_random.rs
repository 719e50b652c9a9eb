//! Any set of tensors: what was written is what the reference reader and we read, every
//! tensor is aligned, and one set is one file. And the other way: what the reference wrote.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tenslab::weights::{
    Checkpoint, LoadOptions, SaveEntry, SaveOptions, SaveReport, WeightDType, Weights, save_with,
};
use tenslab::{DType, Shape, Tensor, memory};

/// All tags of the format, with the width that an element is aligned to, in bytes.
const TAGS: [(&str, u64); 22] = [
    ("BOOL", 1),
    ("F4", 1),
    ("F6_E2M3", 1),
    ("F6_E3M2", 1),
    ("U8", 1),
    ("I8", 1),
    ("F8_E5M2", 1),
    ("F8_E4M3", 1),
    ("F8_E8M0", 1),
    ("F8_E4M3FNUZ", 1),
    ("F8_E5M2FNUZ", 1),
    ("I16", 2),
    ("U16", 2),
    ("F16", 2),
    ("BF16", 2),
    ("I32", 4),
    ("U32", 4),
    ("F32", 4),
    ("C64", 8),
    ("F64", 8),
    ("I64", 8),
    ("U64", 8),
];

fn width(tag: &str) -> u64 {
    TAGS.iter().find(|(known, _)| *known == tag).unwrap().1
}

/// One tensor of a set.
#[derive(Debug, Clone)]
struct One {
    tag: &'static str,
    shape: Vec<usize>,
    first: u8,
    /// For those that there are tensors of: with its first two dimensions swapped in memory.
    turned: bool,
}

impl One {
    /// The bytes that have to be in the file, in row-major order.
    fn bytes(&self) -> Vec<u8> {
        let bits = WeightDType::from_tag(self.tag).bits().unwrap() as usize;
        let bytes = self.shape.iter().product::<usize>() * bits / 8;
        let from = usize::from(self.first);
        (from..from + bytes)
            .map(|at| (at % 251).to_le_bytes()[0])
            .collect()
    }

    /// As a tensor, if there are tensors of it.
    fn tensor(&self) -> Option<Tensor> {
        let dtype = DType::from_safetensors_tag(self.tag).filter(|dtype| !dtype.is_reserved())?;
        let shape = Shape::from_dims(&self.shape).unwrap();
        let tensor = Tensor::empty(shape, dtype, memory::cpu()).unwrap();
        tensor.write_bytes().unwrap().copy_from_slice(&self.bytes());
        if !self.turned || self.shape.len() < 2 {
            return Some(tensor);
        }
        let turned = tensor.transpose(0, 1).unwrap();
        let other = Tensor::empty(*turned.shape(), dtype, memory::cpu()).unwrap();
        tenslab::ops::copy(&other, &turned).unwrap();
        Some(other.transpose(0, 1).unwrap())
    }
}

type Set = BTreeMap<String, One>;

fn one() -> impl Strategy<Value = One> {
    let shape = prop::collection::vec(0_usize..5, 0..5);
    (0..TAGS.len(), shape, any::<u8>(), any::<bool>()).prop_map(
        |(tag, mut shape, first, turned)| {
            let tag = TAGS[tag].0;
            // Of narrow elements there are whole bytes only.
            if WeightDType::from_tag(tag).bits().unwrap() < 8 {
                shape.push(4);
            }
            One {
                tag,
                shape,
                first,
                turned,
            }
        },
    )
}

fn set() -> impl Strategy<Value = Set> {
    // Letters of all kinds, control characters, quotes, and often the empty name.
    let name = prop_oneof![any::<String>(), "[\\x00-\\x1f\"\\\\/a-c]{0,4}"]
        .prop_filter("the format's own", |name| name != "__metadata__");
    prop::collection::btree_map(name, one(), 0..24)
}

fn write(path: &Path, set: &Set, metadata: &BTreeMap<String, String>, back: bool) -> SaveReport {
    let parts: Vec<_> = set
        .iter()
        .map(|(name, one)| (name, one, one.bytes(), one.tensor()))
        .collect();
    let mut entries: Vec<_> = parts
        .iter()
        .map(|(name, one, bytes, tensor)| match tensor {
            Some(tensor) => SaveEntry::tensor(name, tensor),
            None => SaveEntry::raw(name, one.tag, &one.shape, bytes),
        })
        .collect();
    if back {
        entries.reverse();
    }
    let options = SaveOptions {
        metadata: metadata.clone(),
        sync: false,
        ..SaveOptions::default()
    };
    save_with(path, &entries, &options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The reference reader and we find the set in the file, each tensor at a multiple of
/// its width.
fn check(path: &Path, set: &Set, metadata: &BTreeMap<String, String>) {
    let bytes = fs::read(path).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), set.len());
    for (name, one) in set {
        let view = reference.tensor(name).unwrap();
        assert_eq!(view.dtype().to_string(), one.tag);
        assert_eq!(view.shape(), one.shape);
        assert_eq!(view.data(), one.bytes(), "{name:?}");
    }
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let found = header.metadata().clone().unwrap_or_default();
    assert_eq!(&found.into_iter().collect::<BTreeMap<_, _>>(), metadata);

    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!(checkpoint.entries().len(), set.len());
    assert_eq!(checkpoint.metadata(), metadata);
    assert_eq!(checkpoint.files()[0].data_start() % 64, 0);
    for entry in checkpoint.entries() {
        let width = width(entry.dtype().tag());
        assert_eq!(entry.offset() % width, 0, "{:?}", entry.name());
    }
    let weights = Weights::load(path, &LoadOptions::default()).unwrap();
    for (name, one) in set {
        assert_eq!(
            *weights.raw(name).unwrap().read_bytes().unwrap(),
            one.bytes()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_set_is_read_back_is_aligned_and_is_one_file(
        set in set(),
        metadata in prop::collection::btree_map(any::<String>(), any::<String>(), 0..4),
    ) {
        let place = tempfile::tempdir().unwrap();
        let (path, again) = (place.path().join("a"), place.path().join("b"));
        let report = write(&path, &set, &metadata, false);
        check(&path, &set, &metadata);
        prop_assert_eq!(report.file_bytes, fs::metadata(&path).unwrap().len());
        write(&again, &set, &metadata, true);
        prop_assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap());
    }

    #[test]
    fn what_the_reference_wrote_is_copied_through(set in set()) {
        let place = tempfile::tempdir().unwrap();
        let (theirs, ours) = (place.path().join("theirs"), place.path().join("ours"));
        let bytes: Vec<_> = set.values().map(One::bytes).collect();
        let views = set.iter().zip(&bytes).map(|((name, one), bytes)| {
            let dtype: Dtype = serde_json::from_str(&format!("{:?}", one.tag)).unwrap();
            (name, TensorView::new(dtype, one.shape.clone(), bytes).unwrap())
        });
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let info: HashMap<_, _> = metadata.clone().into_iter().collect();
        safetensors::serialize_to_file(views, Some(info), &theirs).unwrap();

        let weights = Weights::load(&theirs, &LoadOptions::default()).unwrap();
        let raw: Vec<_> = weights.names().map(|name| weights.raw(name).unwrap()).collect();
        let shapes: Vec<_> = weights.entries().map(|at| at.shape()).collect();
        let listed = weights.entries().zip(shapes.iter().zip(&raw));
        let entries: Vec<_> = listed
            .map(|(at, (shape, raw))| {
                SaveEntry::raw_tensor(at.name(), at.dtype().tag(), shape.dims(), raw)
            })
            .collect();
        let options = SaveOptions {
            metadata: weights.metadata().clone(),
            sync: false,
            ..SaveOptions::default()
        };
        save_with(&ours, &entries, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        check(&ours, &set, &metadata);
    }
}

#[test]
fn every_tag_is_written_and_the_widths_descend() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("all");
    let set: Set = TAGS
        .iter()
        .zip(0..)
        .map(|(&(tag, _), first)| {
            // Odd counts, so that one in the wrong place moves its neighbours.
            let shape = if width(tag) == 1 { vec![4, 3] } else { vec![3] };
            let one = One {
                tag,
                shape,
                first,
                turned: false,
            };
            (format!("{first:02}"), one)
        })
        .collect();
    write(&path, &set, &BTreeMap::new(), false);
    check(&path, &set, &BTreeMap::new());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let keys: Vec<_> = checkpoint
        .entries()
        .map(|entry| {
            let bits = entry.dtype().bits().unwrap();
            (std::cmp::Reverse(bits), entry.name().to_owned())
        })
        .collect();
    assert_eq!(keys.len(), TAGS.len());
    assert!(keys.is_sorted());
}
