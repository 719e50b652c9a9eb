//! Second readers: whatever we accept they accept too, with equal contents, and what we
//! refuse and they accept is one of the exceptions here.
//!
//! For headers it is the `safetensors` crate, for an index a few lines over `serde_json`.
//! Tests and fuzzers share this. A difference is an `Err` that says what it is.

#![allow(dead_code, reason = "no user needs both readers")]

pub(crate) mod header;
pub(crate) mod index;

/// What two readers said of one input. They agree, or may differ as they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// Both accept it, with equal contents.
    Accepted,
    /// Both refuse it.
    Refused,
    /// We accept it and the reference does not: a dtype that the format does not define.
    OnlyOurs,
    /// The reference accepts it and we do not: see [`header::compare`].
    OnlyTheirs,
}

/// A message is one line that cannot drive a terminal, and no longer than `most` bytes.
fn check_message(message: &str, most: usize) -> Result<(), String> {
    if message.is_empty() || message.len() > most || message.chars().any(char::is_control) {
        return Err(format!(
            "a message of {} bytes: {message:.1000?}",
            message.len()
        ));
    }
    Ok(())
}

/// `Err` that says what is not so.
fn require(is_so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(what()) }
}
