//! The weights, in one of the three ways that tenslab has.

use std::path::Path;

use tenslab::weights::{LoadMode, LoadOptions, MapOptions, Weights};

use crate::args::{Args, Place};
use crate::trouble::Trouble;

/// Brings the weights of a directory to where they are wanted.
///
/// # Errors
///
/// What is wrong with the files, and a system that cannot do it.
pub(crate) fn bring(directory: &Path, args: &Args) -> Result<Weights, Trouble> {
    let options = LoadOptions {
        dtype: args.dtype,
        threads: args.threads(),
        ..LoadOptions::default()
    };
    match args.weights {
        Place::Load => Ok(Weights::load(directory, &options)?),
        Place::Map => {
            // SAFETY: nobody writes to the files or cuts them while this process runs. That is
            // the promise of who asks for it, as --help says.
            Ok(unsafe { Weights::map(directory, &MapOptions::default()) }?)
        }
        Place::Sealed => sealed(directory, &options),
    }
}

/// A worker would get the descriptor from another process; here both are one.
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
fn sealed(directory: &Path, options: &LoadOptions) -> Result<Weights, Trouble> {
    Ok(Weights::map_sealed(Weights::seal(directory, options)?)?)
}

#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
fn sealed(_directory: &Path, _options: &LoadOptions) -> Result<Weights, Trouble> {
    let text = "sealed memory is to be had on Linux only; use --weights load or map";
    Err(Trouble::new(text))
}

/// What holds them, for the report.
pub(crate) fn holder(mode: LoadMode) -> &'static str {
    match mode {
        LoadMode::Map => "mapped files",
        LoadMode::Sealed => "sealed memory",
        _ => "one slab",
    }
}
