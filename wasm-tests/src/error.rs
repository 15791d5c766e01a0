//! The one error type, with texts that a failing test can show as they are.

use crate::Callback;
use std::fmt;
use std::path::PathBuf;

/// The result of nearly everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The shipped module has not been built.
    NotBuilt(PathBuf),
    /// The file could not be read.
    Read(PathBuf, String),
    /// Not a valid module, or not a proxy-wasm 0.2.1 module.
    Module(String),
    /// The module imports something that this host does not have: Envoy may not
    /// have it either.
    UnknownImport {
        /// Where the module looks for it.
        module: String,
        /// What it looks for.
        name: String,
        /// Its type.
        signature: String,
    },
    /// The guest trapped: its VM is dead until [`Vm::reload`](crate::Vm::reload).
    Trap(Box<Trap>),
    /// The VM trapped earlier, and nothing was called. Envoy fails closed here.
    Failed(Box<Trap>),
    /// The guest refused to start or refused its configuration.
    Rejected {
        /// `VmStart` or `Configure`.
        callback: Callback,
        /// What it logged meanwhile.
        log: Vec<String>,
    },
    /// The test asks for something that Envoy never does, or uses a stream that is over.
    Misuse(String),
}

/// The end of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Where it happened.
    pub callback: Callback,
    /// What the interpreter says.
    pub cause: String,
    /// Whether the fuel ran out.
    pub out_of_fuel: bool,
    /// What the guest logged during the callback; a panic message stands here.
    pub log: Vec<String>,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest trapped in {}: {}", self.callback, self.cause)?;
        write_log(f, &self.log)
    }
}

fn write_log(f: &mut fmt::Formatter<'_>, log: &[String]) -> fmt::Result {
    log.iter().try_for_each(|line| write!(f, "\n  it logged: {line}"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt(path) => write!(
                f,
                "{} is not there: run `make wasm` first, or name another module in TIDEGATE_WASM",
                path.display()
            ),
            Self::Read(path, cause) => write!(f, "cannot read {}: {cause}", path.display()),
            Self::Module(cause) => write!(f, "cannot load the module: {cause}"),
            Self::UnknownImport { module, name, signature } => {
                write!(
                    f,
                    "the module imports `{module}` `{name}`, {signature}, which this host does not have"
                )
            }
            Self::Trap(trap) => trap.fmt(f),
            Self::Failed(trap) => write!(f, "the VM is dead and was not called; earlier, {trap}"),
            Self::Rejected { callback, log } => {
                write!(f, "the guest answered false in {callback}")?;
                write_log(f, log)
            }
            Self::Misuse(what) => write!(f, "misuse of the test host: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn misuse(what: impl Into<String>) -> Self {
        Self::Misuse(what.into())
    }
}
