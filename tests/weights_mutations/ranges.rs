//! Kinds of mutations: numbers that do not fit each other or the file.

use tenslab::Shape;
use tenslab::types::TypeError;
use tenslab::weights::{FormatFault, WeightDType};

use crate::draft::{Dice, Draft, One, TAGS};
use crate::{Expected, Kind, Mutation};

pub(crate) const KINDS: [(&str, Kind); 16] = [
    ("an end moved", end_moved),
    ("a begin moved", begin_moved),
    ("an end as far as can be", end_at_the_limit),
    ("a tensor moved up", moved_up),
    ("a tensor moved down", moved_down),
    ("a gap", gap),
    ("a tensor left out", left_out),
    ("two tensors over one range", one_range_twice),
    ("two ranges swapped", ranges_swapped),
    ("a size changed", size_changed),
    ("a dtype changed", dtype_changed),
    ("too many dimensions", too_many_dimensions),
    ("too many elements", too_many_elements),
    ("data cut", data_cut),
    ("data appended", data_appended),
    ("nothing at all", unchanged),
];

fn known(one: &One) -> bool {
    one.bits().is_some()
}

/// What is to be said of a tensor whose own numbers were changed.
fn own_fault(one: &One) -> Option<FormatFault> {
    let name = one.name.clone();
    let (begin, end) = (one.begin, one.end);
    if end < begin {
        return Some(FormatFault::BackwardRange { name, begin, end });
    }
    let dtype = WeightDType::from_tag(one.tag);
    let dims = one.dims.iter().map(|&dim| usize::try_from(dim).unwrap());
    let shape = Box::new(Shape::from_dims(&dims.collect::<Vec<_>>()).unwrap());
    let total_bits = shape.numel() as u128 * u128::from(one.bits()?);
    let saturated = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    if !total_bits.is_multiple_of(8) {
        let total_bits = saturated(total_bits);
        return Some(FormatFault::PartialByte {
            name,
            dtype,
            shape,
            total_bits,
        });
    }
    if total_bits / 8 == u128::from(end - begin) {
        return None;
    }
    Some(FormatFault::WrongLength {
        name,
        dtype,
        shape,
        expected_bytes: saturated(total_bits / 8),
        range_bytes: end - begin,
    })
}

/// The draft with the tensor at `at` changed, which is refused for itself or read.
fn changed(draft: &Draft, at: usize, change: impl FnOnce(&mut One)) -> Mutation {
    let mut draft = draft.clone();
    change(&mut draft.tensors[at]);
    let expected = own_fault(&draft.tensors[at]);
    let file = draft.file();
    (
        file,
        expected.map_or(Expected::Read(draft), Expected::Fault),
    )
}

fn unchanged(draft: &Draft, _: &mut Dice) -> Option<Mutation> {
    Some((draft.file(), Expected::Read(draft.clone())))
}

fn end_moved(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, known)?;
    let by = dice.pick(&[-1, 1, 8, -8]);
    Some(changed(draft, at, |one| {
        one.end = one.end.wrapping_add_signed(by)
    }))
}

fn begin_moved(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, known)?;
    let by = dice.pick(&[-1, 1, 8, -8]);
    Some(changed(draft, at, |one| {
        one.begin = one.begin.wrapping_add_signed(by)
    }))
}

/// No arithmetic on it overflows.
fn end_at_the_limit(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (file, expected) = changed(draft, at, |one| one.end = u64::MAX);
    if known(&draft.tensors[at]) {
        return Some((file, expected));
    }
    let (name, file_bytes) = (draft.tensors[at].name.clone(), file.len() as u64);
    let expected = Expected::like(
        "an overlap with a neighbour, or a truncated file",
        move |fault| match fault {
            FormatFault::Overlap {
                first,
                second,
                first_end,
                ..
            } => (first, *first_end) == (&name, u64::MAX) || *second == name,
            FormatFault::Truncated {
                name: last,
                needed_bytes,
                file_bytes: found,
            } => (last, *needed_bytes, *found) == (&name, u64::MAX, file_bytes),
            _ => false,
        },
    );
    Some((file, expected))
}

fn moved_up(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |one| one.nbytes() > 0)?;
    let hole = draft.tensors[at].begin;
    let mut draft = draft.clone();
    draft.tensors[at].begin += 1;
    draft.tensors[at].end += 1;
    // The next one may lie there too by now, and be the one that is named.
    let next: Vec<String> = (draft.tensors.iter().filter(|one| one.begin == hole + 1))
        .map(|one| one.name.clone())
        .collect();
    let expected = Expected::like("a hole of one byte", move |fault| {
        matches!(fault, FormatFault::Hole { begin, end, next: found, .. }
            if (*begin, *end) == (hole, hole + 1) && next.contains(found))
    });
    Some((draft.file(), expected))
}

fn moved_down(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |one| one.nbytes() > 0 && one.begin > 0)?;
    let mut draft = draft.clone();
    let one = &mut draft.tensors[at];
    one.begin -= 1;
    one.end -= 1;
    let (name, begin) = (one.name.clone(), one.begin);
    let expected = Expected::like("an overlap of one byte", move |fault| {
        matches!(fault, FormatFault::Overlap { first, second, second_begin, .. }
            if *second_begin == begin && (*first == name || *second == name))
    });
    Some((draft.file(), expected))
}

/// Between the tensors before `at`, and it.
fn hole_before(draft: &Draft, at: usize, begin: u64) -> Expected {
    let next = &draft.tensors[at];
    let previous = at.checked_sub(1).map(|at| draft.tensors[at].name.clone());
    Expected::Fault(FormatFault::Hole {
        previous,
        next: next.name.clone(),
        begin,
        end: next.begin,
    })
}

fn gap(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let by = dice.pick(&[1, 7, 1 << 12]);
    let mut draft = draft.clone();
    let begin = draft.tensors[at].begin;
    for one in &mut draft.tensors[at..] {
        one.begin += by;
        one.end += by;
    }
    draft.data_bytes += by;
    Some((draft.file(), hole_before(&draft, at, begin)))
}

fn left_out(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let mut draft = draft.clone();
    let gone = draft.tensors.remove(at);
    let file = draft.file();
    let expected = if gone.nbytes() == 0 {
        Expected::Read(draft)
    } else if at == draft.tensors.len() {
        let trailing_bytes = gone.nbytes();
        let expected_bytes = file.len() as u64 - trailing_bytes;
        Expected::Fault(FormatFault::TrailingBytes {
            trailing_bytes,
            expected_bytes,
        })
    } else {
        hole_before(&draft, at, gone.begin)
    };
    Some((file, expected))
}

fn one_range_twice(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |one| one.nbytes() > 0)?;
    let mut draft = draft.clone();
    let mut other = draft.tensors[at].clone();
    other
        .name
        .insert_str(0, dice.pick(&["\0\0", "\u{10ffff}x"]));
    if draft.tensors.iter().any(|one| one.name == other.name) {
        return None;
    }
    let mut names = [draft.tensors[at].name.clone(), other.name.clone()];
    names.sort();
    let [first, second] = names;
    let (first_end, second_begin) = (other.end, other.begin);
    draft.tensors.push(other);
    let fault = FormatFault::Overlap {
        first,
        second,
        first_end,
        second_begin,
    };
    Some((draft.file(), Expected::Fault(fault)))
}

fn ranges_swapped(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let first = draft.some(dice, known)?;
    let name = draft.tensors[first].name.clone();
    let second = draft.some(dice, |one| known(one) && one.name != name)?;
    let mut draft = draft.clone();
    let [a, b] = [first, second].map(|at| (draft.tensors[at].begin, draft.tensors[at].end));
    for (at, (begin, end)) in [(first, b), (second, a)] {
        draft.tensors[at].begin = begin;
        draft.tensors[at].end = end;
    }
    let file = draft.file();
    let faults = [first, second].map(|at| own_fault(&draft.tensors[at]));
    if faults.iter().all(Option::is_none) {
        return Some((file, Expected::Read(draft)));
    }
    let expected = Expected::like("one of two lengths is wrong", move |fault| {
        faults.iter().flatten().any(|of_one| of_one == fault)
    });
    Some((file, expected))
}

fn size_changed(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |one| !one.dims.is_empty())?;
    let dim = dice.below(draft.tensors[at].dims.len());
    let size = dice.pick(&[0, 1, 2, 5, 1 << 32, i64::MAX as u64]);
    let alone = dice.below(2) == 0 || size > 1 << 20;
    Some(changed(draft, at, |one| {
        one.dims[dim] = size;
        if alone {
            one.dims = vec![size];
        }
    }))
}

fn dtype_changed(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let tag = dice.pick(&TAGS);
    Some(changed(draft, at, |one| one.tag = tag))
}

fn too_many_dimensions(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let mut draft = draft.clone();
    let rank = dice.pick(&[9, 10, 5000]);
    draft.tensors[at]
        .dims
        .resize(rank, dice.pick(&[0, 1, u64::MAX]));
    let source = TypeError::RankTooHigh { rank, max: 8 };
    let name = draft.tensors[at].name.clone();
    Some((
        draft.file(),
        Expected::Fault(FormatFault::InvalidShape { name, source }),
    ))
}

/// Of these products some are 0, in one order or in every one.
fn too_many_elements(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let mut draft = draft.clone();
    let huge = 1 << 40;
    draft.tensors[at].dims = dice.pick(&[
        vec![huge, huge],
        vec![0, huge, huge],
        vec![huge, huge, 0],
        vec![u64::MAX],
        vec![1 << 63],
        vec![1 << 32, 1 << 31],
    ]);
    let name = draft.tensors[at].name.clone();
    let expected = Expected::like("a shape of too many elements", move |fault| {
        matches!(fault, FormatFault::InvalidShape { name: found, source: TypeError::TooManyElements { .. } }
            if *found == name)
    });
    Some((draft.file(), expected))
}

fn data_cut(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let last = draft.tensors.last().filter(|_| draft.data_bytes > 0)?;
    let mut file = draft.file();
    let needed_bytes = file.len() as u64;
    let by = 1 + dice.below(usize::try_from(draft.data_bytes).unwrap());
    file.truncate(file.len() - by);
    let file_bytes = file.len() as u64;
    let name = last.name.clone();
    Some((
        file,
        Expected::Fault(FormatFault::Truncated {
            name,
            needed_bytes,
            file_bytes,
        }),
    ))
}

fn data_appended(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let mut file = draft.file();
    let expected_bytes = file.len() as u64;
    let by = dice.pick(&[1, 2, 4096]);
    file.resize(file.len() + by, 0);
    let trailing_bytes = by as u64;
    Some((
        file,
        Expected::Fault(FormatFault::TrailingBytes {
            trailing_bytes,
            expected_bytes,
        }),
    ))
}
