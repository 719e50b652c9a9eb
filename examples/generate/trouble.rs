//! [`Trouble`]: what ends a run, in one line.

use std::fmt;

/// A run that cannot go on: one line that says what is wrong and what to do.
#[derive(Debug)]
pub(crate) struct Trouble(String);

impl Trouble {
    /// Line breaks and control characters (paths may hold them) are escaped.
    pub(crate) fn new(line: impl fmt::Display) -> Self {
        let line = line.to_string();
        let plain = line.chars().flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        });
        Self(plain.collect())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! from {
    ($($error:ty),+) => {
        $(impl From<$error> for Trouble {
            fn from(error: $error) -> Self {
                Self::new(error)
            }
        })+
    };
}

from!(
    tenslab::memory::AllocError,
    tenslab::memory::StepError,
    tenslab::tensor::TensorError,
    tenslab::kv::KvError,
    tenslab::weights::WeightsError
);
