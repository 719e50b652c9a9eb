//! The checks of a header: its length before it is read, and what it lists, against itself
//! and against the length of its file.

use super::catalog::{Catalog, Record};
use super::{HeaderLimits, LENGTH_BYTES};
use crate::weights::{ForeignFormat, FormatFault};

/// The length of the header, from the first bytes of a file, or what the file
/// is instead. `first` is the whole file or at least its first 64 bytes.
pub(in crate::weights) fn check_length(
    first: &[u8],
    file_bytes: u64,
    limits: &HeaderLimits,
) -> Result<usize, FormatFault> {
    if file_bytes == 0 {
        return Err(FormatFault::Empty);
    }
    let foreign = || {
        let first = &first[..first.len().min(64)];
        ForeignFormat::detect(first).map(|format| FormatFault::Foreign { format })
    };
    let Some(length) = first.first_chunk() else {
        return Err(foreign().unwrap_or(FormatFault::TooSmall { file_bytes }));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes == 0 {
        return Err(FormatFault::EmptyHeader);
    }
    // A foreign file can hold a small number here by chance, but never in front of `{`.
    let text = first[length.len()..].trim_ascii_start();
    let max_bytes = limits.header_bytes();
    if header_bytes > max_bytes {
        return Err(foreign().unwrap_or(FormatFault::HeaderTooLarge {
            header_bytes,
            max_bytes,
        }));
    }
    if text.first().is_some_and(|&byte| byte != b'{')
        && let Some(fault) = foreign()
    {
        return Err(fault);
    }
    let needed_bytes = LENGTH_BYTES.saturating_add(header_bytes);
    usize::try_from(header_bytes)
        .ok()
        .filter(|_| needed_bytes <= file_bytes)
        .ok_or(FormatFault::HeaderTruncated {
            needed_bytes,
            file_bytes,
        })
}

/// Puts the tensors in the order of their bytes, and checks that each has a name of its own
/// and the bytes that it says, and that together they are the file.
pub(super) fn check(
    catalog: &mut Catalog,
    data_start: u64,
    file_bytes: u64,
    limits: &HeaderLimits,
) -> Result<(), FormatFault> {
    refuse_duplicates(catalog)?;
    // By offset, so that everything downstream has one order whatever the
    // order of the keys. Empty tensors share offsets; names settle those.
    let (names, records) = catalog.parts();
    records.sort_unstable_by(|a, b| {
        let ranges = (a.begin, a.end).cmp(&(b.begin, b.end));
        ranges.then_with(|| names.get(a.name).cmp(names.get(b.name)))
    });
    for record in catalog.records() {
        check_length_of(catalog, record)?;
    }
    check_cover(catalog)?;
    check_end(catalog, data_start, file_bytes, limits)
}

/// Sorts by name to find a name that comes twice; needs no memory of its own.
fn refuse_duplicates(catalog: &mut Catalog) -> Result<(), FormatFault> {
    let (names, records) = catalog.parts();
    records.sort_unstable_by(|a, b| names.get(a.name).cmp(names.get(b.name)));
    for pair in records.windows(2) {
        let name = names.get(pair[0].name);
        if name == names.get(pair[1].name) {
            return Err(FormatFault::DuplicateTensor { name: name.into() });
        }
    }
    Ok(())
}

/// Does the range have the bytes that shape and dtype need?
///
/// The width of an unknown dtype is unknown, so its range is taken as it is.
fn check_length_of(catalog: &Catalog, record: &Record) -> Result<(), FormatFault> {
    let (begin, end) = (record.begin, record.end);
    let range_bytes = end
        .checked_sub(begin)
        .ok_or_else(|| FormatFault::BackwardRange {
            name: catalog.name(record).into(),
            begin,
            end,
        })?;
    let (dtype, shape) = (catalog.dtype(record), catalog.shape(record));
    let Some(bits) = dtype.bits() else {
        return Ok(());
    };
    // numel <= i64::MAX and bits <= 64: 128 bits hold the product.
    let total_bits = shape.numel() as u128 * u128::from(bits);
    if !total_bits.is_multiple_of(8) {
        return Err(FormatFault::PartialByte {
            name: catalog.name(record).into(),
            dtype: dtype.clone(),
            shape: Box::new(shape),
            total_bits: saturate(total_bits),
        });
    }
    if total_bits / 8 != u128::from(range_bytes) {
        return Err(FormatFault::WrongLength {
            name: catalog.name(record).into(),
            dtype: dtype.clone(),
            shape: Box::new(shape),
            expected_bytes: saturate(total_bits / 8),
            range_bytes,
        });
    }
    Ok(())
}

fn saturate(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Do the ranges, ordered by offset, follow each other without hole or overlap?
fn check_cover(catalog: &Catalog) -> Result<(), FormatFault> {
    let name = |record: &Record| catalog.name(record).to_owned();
    let mut covered = 0;
    let mut previous: Option<&Record> = None;
    for record in catalog.records() {
        if record.begin > covered {
            return Err(FormatFault::Hole {
                previous: previous.map(name),
                next: name(record),
                begin: covered,
                end: record.begin,
            });
        }
        if let Some(previous) = previous.filter(|_| record.begin < covered) {
            return Err(FormatFault::Overlap {
                first: name(previous),
                second: name(record),
                first_end: covered,
                second_begin: record.begin,
            });
        }
        covered = record.end;
        previous = Some(record);
    }
    Ok(())
}

/// Does the data end where the file ends?
fn check_end(
    catalog: &Catalog,
    data_start: u64,
    file_bytes: u64,
    limits: &HeaderLimits,
) -> Result<(), FormatFault> {
    let last = catalog.records().last();
    let data_bytes = last.map_or(0, |last| last.end);
    let needed_bytes = data_start.saturating_add(data_bytes);
    if needed_bytes > file_bytes {
        return Err(FormatFault::Truncated {
            name: last.map_or_else(String::new, |last| catalog.name(last).into()),
            needed_bytes,
            file_bytes,
        });
    }
    let trailing_bytes = file_bytes - needed_bytes;
    if trailing_bytes > 0 && !limits.allow_trailing {
        return Err(FormatFault::TrailingBytes {
            trailing_bytes,
            expected_bytes: needed_bytes,
        });
    }
    Ok(())
}
