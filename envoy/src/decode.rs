//! Reads compressed answers as they pass, in bounded memory.

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use std::cell::Cell;
use std::io::{self, Write};
use tidegate::gate::Missing;
use tidegate::usage::{OverflowScanner, Scanner};

/// Bytes that one answer may become. A few of them may become a thousand times
/// as many.
const DECODED_MAX: u64 = 64 << 20;
/// Bytes that all decoders of one VM may take together; VM memory never shrinks.
const MEMORY_MAX: usize = 64 << 20;
/// What a decoder for DEFLATE takes: its window, tables and one buffer.
const DEFLATE_MEMORY: usize = 128 << 10;
/// The largest window of Brotli, in bits (RFC 7932 allows 24, large windows 30).
/// Encoders use 22 unless told otherwise.
const BROTLI_WINDOW_BITS: u32 = 23;
/// What a decoder for Brotli takes beside its window; a hostile stream can make
/// it 4 MiB, by the number of its tables.
const BROTLI_MEMORY: usize = 256 << 10;
/// Decoded bytes that are handed on at a time.
const BUFFER: usize = 16 << 10;

thread_local! {
    static MEMORY: Cell<usize> = const { Cell::new(0) };
}

/// What the bytes of an answer are read for.
#[derive(Clone)]
pub(crate) enum Reader {
    Usage(Box<Scanner>),
    /// Whether it refuses the request for its length.
    Refusal(OverflowScanner),
}

impl Reader {
    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Usage(scanner) => scanner.feed(bytes),
            Self::Refusal(scanner) => scanner.feed(bytes),
        }
    }
}

/// Reads an answer in some encoding.
pub(crate) struct Decoder {
    kind: Kind,
    /// Given back when the decoder goes.
    _memory: Option<Memory>,
}

enum Kind {
    Identity(Sink),
    Gzip(Box<MultiGzDecoder<Sink>>),
    Deflate(Box<ZlibDecoder<Sink>>),
    /// Before the first byte, which states the window.
    BrotliStart(Sink),
    Brotli(Box<DecompressorWriter<Sink>>),
    /// It cannot be read, and why.
    Failed(Missing),
}

/// The encodings that are read, as clients name them.
fn reads(encoding: &[u8]) -> bool {
    [&b"gzip"[..], b"x-gzip", b"deflate", b"br", b"identity"]
        .iter()
        .any(|known| encoding.eq_ignore_ascii_case(known))
}

/// An `accept-encoding` (RFC 9110, 12.5.3) without what is not read: weights and
/// order stay. `None` if nothing has to go.
pub(crate) fn narrow(accepted: &[u8]) -> Option<Vec<u8>> {
    let known = |one: &&[u8]| {
        let name = one.split(|byte| *byte == b';').next().unwrap_or_default();
        reads(name.trim_ascii())
    };
    let all = accepted.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let kept: Vec<&[u8]> = all.clone().filter(known).collect();
    match kept.len() {
        0 => Some(b"identity".to_vec()),
        count if count == all.count() => None,
        _ => Some(kept.join(&b", "[..])),
    }
}

impl Decoder {
    /// A decoder for this `content-encoding`, in front of a reader.
    pub(crate) fn new(encoding: Option<&[u8]>, reader: Reader) -> Self {
        let sink = Sink { reader, decoded: 0 };
        let plain = |kind| Self { kind, _memory: None };
        match encoding.map(<[u8]>::to_ascii_lowercase).as_deref() {
            None => plain(Kind::Identity(sink)),
            Some(b"br") => plain(Kind::BrotliStart(sink)),
            Some(b"gzip" | b"x-gzip") => {
                Self::with(DEFLATE_MEMORY, || Kind::Gzip(Box::new(MultiGzDecoder::new(sink))))
            }
            Some(b"deflate") => {
                Self::with(DEFLATE_MEMORY, || Kind::Deflate(Box::new(ZlibDecoder::new(sink))))
            }
            Some(_) => plain(Kind::Failed(Missing::Encoded)),
        }
    }

    fn with(memory: usize, kind: impl FnOnce() -> Kind) -> Self {
        match Memory::take(memory) {
            Some(memory) => Self { kind: kind(), _memory: Some(memory) },
            None => Self { kind: Kind::Failed(Missing::EncodedLarge), _memory: None },
        }
    }

    /// Reads the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first() else { return };
        if matches!(self.kind, Kind::BrotliStart(_)) {
            let failed = Kind::Failed(Missing::EncodedLarge);
            let start = core::mem::replace(&mut self.kind, failed);
            let bits = window_bits(*first).filter(|bits| *bits <= BROTLI_WINDOW_BITS);
            if let (Kind::BrotliStart(sink), Some(bits)) = (start, bits) {
                *self = Self::with((1 << bits) + BROTLI_MEMORY, || {
                    Kind::Brotli(Box::new(DecompressorWriter::new(sink, BUFFER)))
                });
            }
        }
        let read = match &mut self.kind {
            Kind::Identity(sink) => {
                // Nothing is kept of it, so there is no limit to it.
                sink.reader.feed(bytes);
                Ok(())
            }
            Kind::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Kind::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Kind::Brotli(decoder) => decoder.write_all(bytes),
            Kind::BrotliStart(_) | Kind::Failed(_) => Ok(()),
        };
        if let Err(error) = read {
            let large = error.kind() == io::ErrorKind::FileTooLarge;
            let missing = if large { Missing::EncodedLarge } else { Missing::Unreadable };
            *self = Self { kind: Kind::Failed(missing), _memory: None };
        }
    }

    /// The reader, after the answer's end or where it broke off. Checksums are
    /// not asked for: a stream without its end has still said what it said.
    pub(crate) fn finish(mut self) -> Result<Reader, Missing> {
        let sink = match &mut self.kind {
            Kind::Identity(sink) | Kind::BrotliStart(sink) => sink,
            Kind::Gzip(decoder) => decoder.get_mut(),
            Kind::Deflate(decoder) => decoder.get_mut(),
            Kind::Brotli(decoder) => decoder.get_mut(),
            Kind::Failed(missing) => return Err(*missing),
        };
        Ok(sink.reader.clone())
    }
}

/// The window that a Brotli stream states in its first byte (RFC 7932, 9.1);
/// `None` if it is one of the large ones, which that does not define.
fn window_bits(first: u8) -> Option<u32> {
    let first = u32::from(first);
    match (first & 1, first >> 1 & 7, first >> 4 & 7) {
        (0, ..) => Some(16),
        (_, 0, 0) => Some(17),
        (_, 0, 1) => None,
        (_, 0, bits) => Some(8 + bits),
        (_, bits, _) => Some(17 + bits),
    }
}

/// Where decoded bytes go.
pub(crate) struct Sink {
    reader: Reader,
    decoded: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.decoded = self.decoded.saturating_add(bytes.len() as u64);
        if self.decoded > DECODED_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.reader.feed(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A share of the VM's memory for decoders.
pub(crate) struct Memory(usize);

impl Memory {
    fn take(bytes: usize) -> Option<Self> {
        let taken = MEMORY.get().checked_add(bytes).filter(|taken| *taken <= MEMORY_MAX)?;
        MEMORY.set(taken);
        Some(Self(bytes))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        MEMORY.set(MEMORY.get().saturating_sub(self.0));
    }
}
