//! Where bytes are.

use std::fmt;
use std::str::FromStr;

use super::TypeError;

/// Where memory is.
///
/// It is an address and no more: nothing checks the index against hardware.
/// The engine runs on the CPU; `Cuda` is reserved, can be named and parsed, and
/// every allocation on it is refused.
///
/// ```
/// use tenslab::Device;
///
/// assert_eq!("cuda".parse::<Device>()?, Device::Cuda(0));
/// assert_eq!(Device::Cuda(1).to_string(), "cuda:1");
/// assert!("cpu:1".parse::<Device>().is_err());
/// # Ok::<(), tenslab::types::TypeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// The host.
    #[default]
    Cpu,
    /// A CUDA device by index. Reserved.
    Cuda(u32),
}

impl Device {
    /// Is it the host?
    #[must_use]
    pub const fn is_cpu(self) -> bool {
        matches!(self, Self::Cpu)
    }

    /// Is it a CUDA device?
    #[must_use]
    pub const fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// The index; always 0 for the host.
    #[must_use]
    pub const fn index(self) -> u32 {
        match self {
            Self::Cpu => 0,
            Self::Cuda(index) => index,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = TypeError;

    /// Accepts `cpu`, `cuda` and `cuda:N`, and nothing else: no sign, no
    /// leading zero, no space, no `cpu:0`.
    ///
    /// # Errors
    /// [`UnknownDevice`](TypeError::UnknownDevice).
    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        let unknown = || TypeError::UnknownDevice { spec: spec.into() };
        match spec {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let digits = spec.strip_prefix("cuda:").ok_or_else(unknown)?;
                let index: u32 = digits.parse().map_err(|_| unknown())?;
                // What prints differently was not one of the exact forms.
                if index.to_string() == digits {
                    Ok(Self::Cuda(index))
                } else {
                    Err(unknown())
                }
            }
        }
    }
}
