use super::quoted::Quoted;
use super::{ForeignFormat, WeightDType};
use crate::types::{Shape, TypeError};

/// What is wrong with the bytes of one safetensors file.
///
/// It knows tensors and numbers; [`WeightsError::Format`](super::WeightsError::Format)
/// adds the path. Names are printed escaped, so a message is always one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatFault {
    /// There is nothing in it.
    #[error("the file is empty; download it again")]
    Empty,
    /// Shorter than the length field.
    #[error(
        "the file has {file_bytes} bytes, and the length field alone needs 8; download it again"
    )]
    TooSmall {
        /// Length of the file.
        file_bytes: u64,
    },
    /// Another format.
    #[error("not a safetensors file: {format}")]
    Foreign {
        /// What it looks like.
        format: ForeignFormat,
    },
    /// The length field is 0.
    #[error("empty header: the length field says 0 bytes, and the shortest header is \"{{}}\"")]
    EmptyHeader,
    /// The length field is above the limit.
    #[error(
        "the length field says {header_bytes} bytes of header, and the limit is {max_bytes}: not a safetensors file, or damaged; raise HeaderLimits::max_header_bytes if the file is trusted"
    )]
    HeaderTooLarge {
        /// What the length field says.
        header_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The file ends inside the header.
    #[error(
        "truncated: the header needs {needed_bytes} bytes and the file has {file_bytes}, {} are missing; download it again",
        needed_bytes.saturating_sub(*file_bytes)
    )]
    HeaderTruncated {
        /// Bytes up to the end of the header.
        needed_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The header is no UTF-8.
    #[error("the header is not UTF-8 from its byte {at} on")]
    NotUtf8 {
        /// The first byte of the header that is not.
        at: usize,
    },
    /// The header is no JSON object.
    #[error("the header is not the JSON that safetensors wants: {reason}")]
    BadJson {
        /// What the JSON reader says.
        reason: String,
    },
    /// Two tensors have one name, which readers resolve differently.
    #[error("tensor {} is listed twice", Quoted(name))]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// There are two `__metadata__` objects.
    #[error("\"__metadata__\" is listed twice")]
    DuplicateMetadata,
    /// One metadata key is listed twice.
    #[error("metadata key {} is listed twice", Quoted(key))]
    DuplicateMetadataKey {
        /// The key.
        key: String,
    },
    /// The metadata is not an object of strings.
    #[error("metadata key {} must be a string: {reason}", Quoted(key))]
    BadMetadataValue {
        /// The key; empty when `__metadata__` itself is no object.
        key: String,
        /// What the JSON reader says.
        reason: String,
    },
    /// A tensor has one of its three fields twice.
    #[error("tensor {}: field {field:?} is listed twice", Quoted(name))]
    DuplicateField {
        /// The tensor.
        name: String,
        /// The field.
        field: &'static str,
    },
    /// A tensor lacks one of its three fields.
    #[error("tensor {}: field {field:?} is missing", Quoted(name))]
    MissingField {
        /// The tensor.
        name: String,
        /// The field.
        field: &'static str,
    },
    /// A field of a tensor has the wrong form.
    #[error("tensor {}: {reason}", Quoted(name))]
    BadField {
        /// The tensor.
        name: String,
        /// What the JSON reader says.
        reason: String,
    },
    /// More tensors than the limit.
    #[error(
        "more than {max_tensors} tensors, which is the limit; raise HeaderLimits::max_tensors if the file is trusted"
    )]
    TooManyTensors {
        /// The limit.
        max_tensors: usize,
    },
    /// More keys of metadata than the limit.
    #[error(
        "more than {max_metadata} keys of metadata, which is the limit; raise HeaderLimits::max_metadata if the file is trusted"
    )]
    TooMuchMetadata {
        /// The limit.
        max_metadata: usize,
    },
    /// More tags of dtypes that the format does not define than are told apart.
    #[error(
        "tensor {} has one more dtype that the format does not define, and {max_dtypes} are the limit for one file: damaged, or not written by a safetensors writer",
        Quoted(name)
    )]
    TooManyDTypes {
        /// The tensor.
        name: String,
        /// The limit.
        max_dtypes: usize,
    },
    /// The shape has too many dimensions, or elements than fit an `i64`.
    #[error("tensor {}: invalid shape: {source}", Quoted(name))]
    InvalidShape {
        /// The tensor.
        name: String,
        /// Which rule it breaks.
        source: TypeError,
    },
    /// The range ends before it begins.
    #[error(
        "tensor {}: its bytes end at {end}, before they begin at {begin}",
        Quoted(name)
    )]
    BackwardRange {
        /// The tensor.
        name: String,
        /// First byte, from the start of the data.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Shape and dtype want another number of bytes than the range has.
    #[error(
        "tensor {}: {dtype} {shape} needs {expected_bytes} bytes and its range has {range_bytes}",
        Quoted(name)
    )]
    WrongLength {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: WeightDType,
        /// Its shape.
        shape: Box<Shape>,
        /// What dtype and shape need.
        expected_bytes: u64,
        /// What the range has.
        range_bytes: u64,
    },
    /// Elements of less than a byte do not fill whole bytes.
    #[error(
        "tensor {}: {dtype} {shape} is {total_bits} bits, which is no whole number of bytes",
        Quoted(name)
    )]
    PartialByte {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: WeightDType,
        /// Its shape.
        shape: Box<Shape>,
        /// Elements times width.
        total_bits: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error(
        "bytes {begin}..{end} of the data belong to no tensor: a hole before {}{}", Quoted(next),
        after(previous.as_ref())
    )]
    Hole {
        /// The tensor in front of the hole, if it is not at the start.
        previous: Option<String>,
        /// The tensor behind it.
        next: String,
        /// First byte of the hole.
        begin: u64,
        /// One past its last byte.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors {} and {} overlap: the one ends at byte {first_end} of the data, the other begins at {second_begin}",
        Quoted(first),
        Quoted(second)
    )]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The other.
        second: String,
        /// Where the first one ends.
        first_end: u64,
        /// Where the second one begins.
        second_begin: u64,
    },
    /// The file ends before the last tensor does.
    #[error(
        "truncated: tensor {} ends at byte {needed_bytes} and the file has {file_bytes}, {} are missing; download it again", Quoted(name),
        needed_bytes.saturating_sub(*file_bytes)
    )]
    Truncated {
        /// The tensor that ends last.
        name: String,
        /// Where it ends, in the file.
        needed_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The file goes on behind the last tensor.
    #[error(
        "{trailing_bytes} trailing bytes behind the last tensor, which ends at byte {expected_bytes}: damaged, or not written by a safetensors writer"
    )]
    TrailingBytes {
        /// How many.
        trailing_bytes: u64,
        /// Where the file should end.
        expected_bytes: u64,
    },
}

fn after(previous: Option<&String>) -> String {
    previous.map_or_else(
        || " at the start".into(),
        |name| format!(", behind {}", Quoted(name)),
    )
}
