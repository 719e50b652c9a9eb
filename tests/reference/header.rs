//! Headers, as we and as the `safetensors` crate read them.

use safetensors::SafeTensors;
use tenslab::weights::{FormatFault, Header, HeaderLimits};

use super::{Answer, check_message, require};

/// The longest message: two names of 120 letters, each escaped, and numbers.
const LONGEST_MESSAGE: usize = 4096;

/// The most heap that a header of a file of so many bytes may take, while it is read or after:
/// the worst is metadata of empty strings, a `BTreeMap` half full. Our own text is in it.
pub(crate) fn most_heap(file_bytes: usize) -> usize {
    16 * file_bytes + 4096
}

/// Reads a file with both readers.
///
/// The reference alone accepts what it resolves and we do not: a name or a metadata key that
/// is listed twice, shapes of more than 8 dimensions or whose product overflows though a
/// size is 0, a tensor that is a list instead of an object, a dtype that is an object; and
/// what is above our limits.
pub(crate) fn compare(file: &[u8]) -> Result<Answer, String> {
    answer_of(file).map(|(answer, _)| answer)
}

/// Reads a file with both readers, and then what it may have been before its lengths became
/// wrong: most mutations change those, and a reader would seldom see the rest.
pub(crate) fn compare_repaired(file: &[u8]) -> Result<Answer, String> {
    let (mut answer, mut fault) = answer_of(file)?;
    let mut file = file.to_vec();
    for _ in 0..3 {
        let Some(fault_of_file) = fault.take() else {
            break;
        };
        if !repair(&mut file, &fault_of_file) {
            break;
        }
        (answer, fault) = answer_of(&file)?;
    }
    Ok(answer)
}

fn answer_of(file: &[u8]) -> Result<(Answer, Option<FormatFault>), String> {
    let limits = HeaderLimits::default();
    let theirs = SafeTensors::deserialize(file);
    let header = match Header::from_bytes(file, &limits) {
        Ok(header) => header,
        Err(fault) => {
            let answer = refused(file, &fault, theirs.is_ok())?;
            return Ok((answer, Some(fault)));
        }
    };
    check_cover(&header, file)?;
    let mut dtypes = header.tensors().map(|tensor| tensor.dtype().bits());
    let answer = match theirs {
        Ok(theirs) => {
            check_contents(&header, &theirs, file)?;
            Answer::Accepted
        }
        Err(_) if dtypes.any(|bits| bits.is_none()) => Answer::OnlyOurs,
        Err(error) => return Err(format!("we accept what the reference refuses: {error}")),
    };
    Ok((answer, None))
}

fn refused(file: &[u8], fault: &FormatFault, they_accept: bool) -> Result<Answer, String> {
    check_message(&fault.to_string(), LONGEST_MESSAGE)?;
    if let FormatFault::TrailingBytes { expected_bytes, .. } = *fault {
        check_trailing(file, expected_bytes)?;
    }
    if !they_accept {
        return Ok(Answer::Refused);
    }
    let is_exception = match fault {
        FormatFault::DuplicateTensor { .. }
        | FormatFault::DuplicateMetadataKey { .. }
        | FormatFault::InvalidShape { .. }
        | FormatFault::TooManyTensors { .. }
        | FormatFault::TooMuchMetadata { .. }
        | FormatFault::HeaderTooLarge { .. } => true,
        FormatFault::BadField { reason, .. } => {
            reason.starts_with("invalid type: sequence, expected an object with dtype")
                || reason.starts_with("invalid type: map, expected a dtype tag")
        }
        _ => false,
    };
    require(is_exception, || {
        format!("we refuse what the reference accepts: {fault}")
    })?;
    Ok(Answer::OnlyTheirs)
}

/// Where trailing bytes are allowed, the file is read as it would be without them.
fn check_trailing(file: &[u8], expected_bytes: u64) -> Result<(), String> {
    let limits = HeaderLimits {
        allow_trailing: true,
        ..HeaderLimits::default()
    };
    let whole = Header::from_bytes(file, &limits);
    let whole = whole.map_err(|fault| format!("no trailing bytes alone: {fault}"))?;
    let cut = Header::from_bytes(&file[..to_usize(expected_bytes)?], &HeaderLimits::default());
    let cut = cut.map_err(|fault| format!("without its trailing bytes: {fault}"))?;
    let is_same = whole.tensors().eq(cut.tensors()) && whole.metadata() == cut.metadata();
    require(is_same, || "trailing bytes change the header".into())
}

/// The tensors follow each other and end where the file ends.
fn check_cover(header: &Header, file: &[u8]) -> Result<(), String> {
    let mut covered = 0;
    for tensor in header.tensors() {
        let follows = tensor.begin() == covered && tensor.end() >= covered;
        require(follows, || {
            format!("{tensor:?} does not begin at {covered}")
        })?;
        covered = tensor.end();
    }
    let end = header.data_start() + covered;
    require(end == file.len() as u64, || {
        format!("tensors end at {end} of {} bytes", file.len())
    })
}

fn check_contents(header: &Header, theirs: &SafeTensors, file: &[u8]) -> Result<(), String> {
    let same_count = theirs.len() == header.tensors().len();
    require(same_count, || format!("{} tensors there", theirs.len()))?;
    for tensor in header.tensors() {
        let view = theirs.tensor(tensor.name()).map_err(|e| e.to_string())?;
        let begin = to_usize(header.data_start() + tensor.begin())?;
        let end = to_usize(header.data_start() + tensor.end())?;
        let is_same = view.dtype().to_string() == tensor.dtype().tag()
            && view.shape() == tensor.shape().dims()
            && view.data().as_ptr_range() == file[begin..end].as_ptr_range();
        require(is_same, || format!("{tensor:?} is {view:?} there"))?;
    }
    let (_, theirs) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
    let theirs = theirs.metadata().clone().unwrap_or_default();
    let ours = header.metadata();
    let is_same = theirs.len() == ours.len()
        && (ours.iter()).all(|(key, value)| theirs.get(key) == Some(value));
    require(is_same, || format!("metadata {ours:?} is {theirs:?} there"))
}

/// Makes the lengths of a file fit what it holds; `false` where nothing was to be done.
fn repair(file: &mut Vec<u8>, fault: &FormatFault) -> bool {
    const LENGTH_BYTES: usize = 8;
    const LONGEST: u64 = 1 << 16;
    let before = file.len();
    match *fault {
        FormatFault::TrailingBytes { expected_bytes, .. } => {
            file.truncate(usize::try_from(expected_bytes).unwrap_or(before));
        }
        FormatFault::Truncated { needed_bytes, .. } if needed_bytes <= LONGEST => {
            file.resize(usize::try_from(needed_bytes).unwrap_or(before), 7);
        }
        FormatFault::HeaderTruncated { .. }
        | FormatFault::HeaderTooLarge { .. }
        | FormatFault::EmptyHeader
        | FormatFault::Foreign { .. }
        | FormatFault::BadJson { .. } => {
            let Some(end) = file.iter().rposition(|&byte| byte == b'}') else {
                return false;
            };
            let Some(length) = (end + 1).checked_sub(LENGTH_BYTES) else {
                return false;
            };
            let length = (length as u64).to_le_bytes();
            if file[..LENGTH_BYTES] == length {
                return false;
            }
            file[..LENGTH_BYTES].copy_from_slice(&length);
            return true;
        }
        _ => {}
    }
    file.len() != before
}

fn to_usize(offset: u64) -> Result<usize, String> {
    usize::try_from(offset).map_err(|error| error.to_string())
}
