//! Sealed memory from a stranger: checked, and never believed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tenslab::DType;
use tenslab::memory::{MapError, UnsealedMemory};
use tenslab::weights::{HeaderLimits, SealedFault, Weights, WeightsError};

use super::{raw, seal, small};

/// All bytes of sealed weights.
fn image(path: &Path) -> Vec<u8> {
    let sealed = seal(path);
    let mut bytes = vec![0; usize::try_from(sealed.bytes()).unwrap()];
    let file = File::from(OwnedFd::from(sealed));
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Maps these bytes, sealed.
fn map_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let mut memory = UnsealedMemory::new("stranger", bytes.len()).unwrap();
    memory.as_mut_slice().copy_from_slice(bytes);
    Weights::map_sealed(memory.seal().unwrap())
}

/// Reads all there is to be had, if something is.
fn touch(weights: &Weights) -> usize {
    let mut bytes = 0;
    for name in weights.names() {
        bytes += raw(weights, name).len();
        if let Ok(tensor) = weights.get(name) {
            bytes += tensor.read_bytes().unwrap().len();
        }
        assert!(weights.checkpoint().entry(name).is_some());
    }
    bytes
}

fn fault(bytes: &[u8]) -> SealedFault {
    match map_bytes(bytes) {
        Err(WeightsError::Sealed { fault }) => *fault,
        other => panic!("{other:?}"),
    }
}

fn word(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Where the record of the first tensor, an f32 of 24 bytes, begins in the image of [`small`].
fn first_record(image: &[u8]) -> usize {
    let words = [2_u64, 0, 24, 0].map(u64::to_le_bytes).concat();
    let found = image.windows(32).position(|window| window == words);
    found.unwrap()
}

#[test]
fn what_is_no_sealed_memory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = small(place.path());
    let plain = Weights::map_sealed(File::open(&path).unwrap()).unwrap_err();
    let WeightsError::Sealed { fault } = plain else {
        panic!("{plain}");
    };
    assert!(matches!(
        *fault,
        SealedFault::Memory(MapError::NoSeals { .. } | MapError::NotSealed { .. })
    ));
    // The right bytes, and no seals.
    let fd = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes = image(&path);
    let unsealed = File::from(fd);
    unsealed.write_all_at(&bytes, 0).unwrap();
    let error = Weights::map_sealed(unsealed.try_clone().unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("not sealed against writing"),
        "{error}"
    );
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&unsealed, needed).unwrap();
    assert_eq!(
        touch(&Weights::map_sealed(unsealed).unwrap()),
        24 * 2 + 3 * 2 + 10 * 2 + 3
    );
}

/// There may be no memory for a page that was never made, and its touch would be a signal.
#[test]
fn memory_with_holes_is_refused() {
    let fd = memfd_create("sparse", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 40).unwrap();
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&fd, needed).unwrap();
    let error = Weights::map_sealed(fd).unwrap_err().to_string();
    assert!(
        error.contains("1099511627776 bytes, and pages for 0"),
        "{error}"
    );
}

#[test]
fn a_wrong_number_in_the_index_is_an_error_with_what_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    assert!(map_bytes(&good).is_ok());
    let with = |at: usize, number: u64| {
        let mut bytes = good.clone();
        word(&mut bytes, at, number);
        bytes
    };
    assert!(matches!(fault(&[]), SealedFault::NotWeights { bytes: 0 }));
    assert!(matches!(fault(&with(0, 7)), SealedFault::NotWeights { .. }));
    assert!(matches!(
        fault(&with(8, 2)),
        SealedFault::Version { found: 2, known: 1 }
    ));
    let long = [&good[..], &[0; 64]].concat();
    assert!(matches!(fault(&long), SealedFault::Length { .. }));
    assert!(matches!(
        fault(&with(24, 31)),
        SealedFault::Index { at: 24, .. }
    ));
    assert!(matches!(
        fault(&with(24, u64::MAX)),
        SealedFault::Index { .. }
    ));
    assert!(matches!(fault(&with(32, 5000)), SealedFault::Index { .. }));

    let record = first_record(&good);
    let at = |number: usize| record + 8 * number;
    assert!(matches!(
        fault(&with(at(0), 1)),
        SealedFault::WrongDType { found: None, .. }
    ));
    assert!(matches!(
        fault(&with(at(0), 2 + u64::from(DType::I32.code()))),
        SealedFault::WrongDType {
            found: Some(DType::I32),
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(0), 300)),
        SealedFault::Index { .. }
    ));
    assert!(matches!(fault(&with(at(0), 99)), SealedFault::Index { .. }));
    assert!(matches!(
        fault(&with(at(1), 1 << 40)),
        SealedFault::OutOfBounds {
            offset: 0x100_0000_0000,
            nbytes: 24,
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(1), u64::MAX)),
        SealedFault::OutOfBounds { .. }
    ));
    assert!(matches!(
        fault(&with(at(1), 4)),
        SealedFault::Unaligned { offset: 4, .. }
    ));
    assert!(matches!(
        fault(&with(at(2), 20)),
        SealedFault::WrongLength {
            nbytes: 20,
            expected_bytes: 24,
            ..
        }
    ));
    // Cast to two bytes each, and as many bytes as before.
    assert!(matches!(
        fault(&with(at(0), 2 + u64::from(DType::F16.code()))),
        SealedFault::WrongLength {
            nbytes: 24,
            expected_bytes: 12,
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(3), 3)),
        SealedFault::OutOfBounds { .. } | SealedFault::WrongPart { .. }
    ));
    assert!(matches!(
        fault(&with(at(3), 2)),
        SealedFault::WrongPart { .. }
    ));
    // Left out, and the rest of the record is read as the next one.
    assert!(map_bytes(&with(at(0), 0)).is_err());
    for error in [with(8, 2), with(at(1), 4), with(at(2), 20)] {
        let message = map_bytes(&error).unwrap_err().to_string();
        assert!(message.starts_with("sealed weights: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn headers_in_it_are_checked_as_those_of_files_are() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        let mut bytes = good.clone();
        bytes[at.unwrap()..][..to.len()].copy_from_slice(to.as_bytes());
        map_bytes(&bytes).unwrap_err().to_string()
    };
    // A name twice in one file, and in two.
    let error = replaced(r#""odd":{"#, r#""a"  :{"#);
    assert!(error.contains("tensor \"a\" is listed twice"), "{error}");
    let error = replaced(r#""b":{"#, r#""a":{"#);
    assert!(
        error.contains("\"a\"") && error.contains("two.safetensors"),
        "{error}"
    );
    let error = replaced(r#"[0,24]"#, r#"[0,23]"#);
    assert!(error.contains("one.safetensors"), "{error}");

    let sealed = seal(&small(place.path()));
    let limits = HeaderLimits {
        max_tensors: 4,
        ..HeaderLimits::default()
    };
    let fd = sealed.try_clone().unwrap();
    let error = Weights::map_sealed_with(fd, &limits).unwrap_err();
    assert!(matches!(error, WeightsError::Set { .. }), "{error}");
    let limits = HeaderLimits {
        max_header_bytes: 100,
        ..HeaderLimits::default()
    };
    let error = Weights::map_sealed_with(sealed, &limits).unwrap_err();
    assert!(matches!(error, WeightsError::Sealed { .. }), "{error}");
}

#[test]
fn every_length_but_the_right_one_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    for length in 0..good.len() {
        assert!(map_bytes(&good[..length]).is_err(), "{length}");
        if length < 24 {
            continue;
        }
        // Also where it says so itself.
        let mut bytes = good[..length].to_vec();
        word(&mut bytes, 16, length as u64);
        if let Ok(weights) = map_bytes(&bytes) {
            // Only padding behind the last tensor may be gone, and there is none.
            panic!("{length}: {weights:?}");
        }
    }
}

/// A number of every kind at every place: an error, or weights that can be read.
#[test]
fn any_number_at_any_place_is_an_error_or_harmless() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    let length = good.len() as u64;
    let (mut refused, mut taken) = (0, 0);
    for at in 0..good.len() - 8 {
        for number in [
            0,
            1,
            64,
            length - 1,
            length,
            1 << 32,
            1 << 63,
            u64::MAX - 63,
            u64::MAX,
        ] {
            let mut bytes = good.clone();
            word(&mut bytes, at, number);
            match map_bytes(&bytes) {
                Ok(weights) => {
                    touch(&weights);
                    taken += 1;
                }
                Err(error) => {
                    assert_eq!(error.to_string().lines().count(), 1, "{error}");
                    refused += 1;
                }
            }
        }
    }
    println!("{refused} refused, {taken} taken");
    // Paths, padding and data may be anything.
    assert!(refused > 5000 && taken > 500, "{refused} {taken}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_anywhere_are_an_error_or_harmless(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let place = tempfile::tempdir().unwrap();
        let mut bytes = image(&small(place.path()));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(weights) = map_bytes(&bytes) {
            touch(&weights);
        }
    }
}
