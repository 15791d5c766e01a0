//! A loaded .wasm file, and what it says about itself.

use crate::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use wasmi::{CompilationMode, Config, Engine, ExternType};

/// Where the shipped module lies: `TIDEGATE_WASM` if set, else `target/tidegate.wasm` of the
/// workspace.
pub fn wasm_path() -> Result<PathBuf> {
    let path = match std::env::var_os("TIDEGATE_WASM") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target/tidegate.wasm"),
    };
    if path.is_file() { Ok(path) } else { Err(Error::NotBuilt(path)) }
}

/// A compiled module. Cheap to clone and safe to share between threads, so one test binary
/// needs to load it only once.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) code: wasmi::Module,
    size: usize,
}

impl Module {
    /// Loads the shipped module, see [`wasm_path`].
    pub fn shipped() -> Result<Self> {
        Self::load(&wasm_path()?)
    }

    /// Loads a module from a file.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)
            .map_err(|error| Error::Read(path.to_path_buf(), error.to_string()))?;
        Self::from_bytes(&bytes)
    }

    /// Loads a module from its bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut config = Config::default();
        // Translating on first use would charge its cost to whichever request comes first.
        config.consume_fuel(true).compilation_mode(CompilationMode::Eager);
        let code = wasmi::Module::new(&Engine::new(&config), bytes)
            .map_err(|error| Error::Module(error.to_string()))?;
        Ok(Self { code, size: bytes.len() })
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What the module wants from its host, in its own order.
    pub fn imports(&self) -> Vec<Item> {
        let item = |import: wasmi::ImportType<'_>| Item {
            module: import.module().to_string(),
            name: import.name().to_string(),
            signature: signature(import.ty()),
        };
        self.code.imports().map(item).collect()
    }

    /// What the module offers, in its own order.
    pub fn exports(&self) -> Vec<Item> {
        let item = |export: wasmi::ExportType<'_>| Item {
            module: String::new(),
            name: export.name().to_string(),
            signature: signature(export.ty()),
        };
        self.code.exports().map(item).collect()
    }
}

/// One import or export.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// The module that an import names; empty for an export.
    pub module: String,
    /// Its name.
    pub name: String,
    /// Its type, such as `func(i32, i32) -> i32`.
    pub signature: String,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.module.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{} {}", self.module, self.name, self.signature)
    }
}

pub(crate) fn signature(ty: &ExternType) -> String {
    let list = |types: &[wasmi::ValType]| {
        types.iter().map(|ty| format!("{ty:?}").to_lowercase()).collect::<Vec<_>>().join(", ")
    };
    match ty {
        ExternType::Func(func) => match func.results() {
            [] => format!("func({})", list(func.params())),
            results => format!("func({}) -> {}", list(func.params()), list(results)),
        },
        ExternType::Memory(_) => "memory".to_string(),
        ExternType::Table(_) => "table".to_string(),
        ExternType::Global(global) => format!("global {:?}", global.content()).to_lowercase(),
    }
}
