//! Input files, plain or gzipped.

use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::path::{Path, PathBuf};

/// A file could not be read.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for FileError {}

impl FileError {
    /// An error while reading the file of this path.
    pub fn new(path: &Path, error: io::Error) -> Self {
        Self { path: path.into(), error }
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a file whole; gzip is told by its first bytes, not by its name.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError { path: path.into(), error };
    let bytes = std::fs::read(path).map_err(failed)?;
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).map_err(failed)?;
    Ok(plain)
}

/// Opens a file to be read bit by bit; gzip is told as by [`read`].
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, FileError> {
    let failed = |error| FileError::new(path, error);
    let mut file =
        io::BufReader::with_capacity(1 << 16, std::fs::File::open(path).map_err(failed)?);
    if !file.fill_buf().map_err(failed)?.starts_with(&GZIP) {
        return Ok(Box::new(file));
    }
    let plain = flate2::bufread::MultiGzDecoder::new(file);
    Ok(Box::new(io::BufReader::with_capacity(1 << 16, plain)))
}

/// Reads a file of UTF-8 text whole, plain or gzipped.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    String::from_utf8(read(path)?).map_err(|error| FileError {
        path: path.into(),
        error: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

/// For tests: a file of the data that stand beside the checkout, in
/// `../shared/data`, or nothing with a word about it.
///
/// # Panics
///
/// When it is absent and the environment variable `TIDEGATE_REQUIRE` lists
/// `data`.
pub fn shared_data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var("TIDEGATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|part| part == "data"), "{} is absent", path.display());
    println!("skipped: {} is absent", path.display());
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn gzip_is_told_by_its_bytes() {
        let folder = std::env::temp_dir().join(format!("tidegate-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"hello").unwrap();
        for (name, bytes) in
            [("plain.gz", b"hello".to_vec()), ("packed.csv", packer.finish().unwrap())]
        {
            let path = folder.join(name);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path).unwrap(), b"hello", "{name}");
            std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        }
        let broken = read(&folder.join("packed.csv")).unwrap_err().to_string();
        assert!(broken.contains("packed.csv"), "{broken}");
        std::fs::write(folder.join("latin"), b"\xe9").unwrap();
        assert!(read_text(&folder.join("latin")).unwrap_err().to_string().contains("utf-8"));
        assert!(read(&folder.join("none")).unwrap_err().to_string().contains("none"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
