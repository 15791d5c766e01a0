//! Makes a trap where the shipped filter has none.

use std::ops::Range;

/// The module with the body of one exported function replaced by
/// `unreachable`, everything else unchanged: calling it kills the VM.
///
/// `proxy_on_request_trailers` is a good one: only requests with trailers meet
/// it, and Envoy passes those on when `enable_trailers` is set.
pub fn trap_at(wasm: &[u8], export: &str) -> Result<Vec<u8>, String> {
    let body =
        body_of(wasm, export).ok_or_else(|| format!("no function {export} in the module"))?;
    let mut out = wasm.to_vec();
    let code = out.get_mut(body).ok_or("the module is cut off")?;
    let [locals, first, .., end] = code else { return Err(format!("{export} is too small")) };
    // No locals, `unreachable`, `nop`s, `end`: as long as the old one.
    (*locals, *first, *end) = (0x00, 0x00, 0x0b);
    let last = code.len() - 1;
    code.get_mut(2..last).unwrap_or_default().fill(0x01);
    Ok(out)
}

/// Where the body of an exported function stands, without its length.
fn body_of(wasm: &[u8], export: &str) -> Option<Range<usize>> {
    let (mut imported, mut wanted) = (0, None);
    let mut at = Cursor { wasm, at: 8 };
    while let Some(section) = at.byte() {
        let end = at.number()? + at.at;
        match section {
            2 => imported = at.imported_functions()?,
            7 => wanted = Some(at.exported_function(export)?),
            10 => {
                let nth = wanted?.checked_sub(imported)?;
                at.number()?;
                for _ in 0..nth {
                    at.at += at.number()?;
                }
                let length = at.number()?;
                return Some(at.at..at.at + length);
            }
            _ => {}
        }
        at.at = end;
    }
    None
}

/// A place in a module's binary format.
struct Cursor<'a> {
    wasm: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.wasm.get(self.at).copied();
        self.at += 1;
        byte
    }

    /// An unsigned LEB128.
    fn number(&mut self) -> Option<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let name = self.wasm.get(self.at..self.at + length);
        self.at += length;
        name
    }

    /// Counts the functions of an import section. Of the other kinds a filter
    /// imports none.
    fn imported_functions(&mut self) -> Option<usize> {
        let count = self.number()?;
        for _ in 0..count {
            self.name()?;
            self.name()?;
            (self.byte()? == 0).then_some(())?;
            self.number()?;
        }
        Some(count)
    }

    fn exported_function(&mut self, wanted: &str) -> Option<usize> {
        let count = self.number()?;
        for _ in 0..count {
            let (name, kind, index) = (self.name()?, self.byte()?, self.number()?);
            if kind == 0 && name == wanted.as_bytes() {
                return Some(index);
            }
        }
        None
    }
}
