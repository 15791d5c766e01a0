//! What is seen of one answer. Its bytes are read as they pass, and pass as
//! they are, but for one event that the client did not ask for.

use crate::decode::{Decoder, Reader};
use crate::host;
use tidegate::config::{Config, UsageSource};
use tidegate::gate::Missing;
use tidegate::pool::Reading;
use tidegate::request::Api;
use tidegate::usage::{self, Filter, Merged, NoUsage, Overflow, OverflowScanner, Scanner, Usage};

/// Where Envoy's AI Protocol Manager publishes what it read, at a clean end of
/// the stream.
const METADATA: [&str; 3] = ["metadata", "typed_filter_metadata", "envoy.ai.token_usage"];

/// Bytes of a document that stand for one token; of a stream its events do.
const TOKEN_BYTES: u64 = 4;

/// What was seen of the answer.
#[derive(Default)]
pub(crate) struct Watched {
    /// `None` until an answer comes from upstream.
    pub(crate) status: Option<u16>,
    /// The answer ended.
    pub(crate) complete: bool,
    body: Body,
    /// Bytes that passed.
    bytes: u64,
    headers: Option<Usage>,
    /// What the replica says of itself.
    pub(crate) report: Option<Reading>,
    /// Takes the usage out of the client's view.
    hide: Option<Box<Filter>>,
    /// It was to be taken out, but could not.
    shown: bool,
}

#[derive(Default)]
enum Body {
    /// Not looked at, and why.
    Passed(Missing),
    Read(Decoder),
    #[default]
    None,
}

/// What the answer told in the end.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) usage: Option<Result<Usage, Missing>>,
    pub(crate) stopped_by_length: bool,
    pub(crate) disagreed: bool,
    pub(crate) overflow: Option<Overflow>,
    /// Output tokens that passed, as far as bytes tell.
    pub(crate) output_seen: u64,
    /// Events that the client did not see.
    pub(crate) hidden: u64,
    /// Events, or streams, that were to be hidden and were not.
    pub(crate) passed: u64,
}

impl Watched {
    /// Looks at the headers of an answer from upstream; in the callback for
    /// response headers only. With `hide` the client is not to see the usage.
    pub(crate) fn begin(&mut self, config: &Config, api: Api, status: u64, hide: bool) {
        self.status = u16::try_from(status).ok();
        if config.usage_sources.contains(&UsageSource::Headers) {
            let header = |name: &Option<String>| name.as_deref().and_then(host::response_header);
            let names = &config.usage_headers;
            let (input, output) = (header(&names.input), header(&names.output));
            self.headers = Usage::from_headers(input.as_deref(), output.as_deref());
        }
        if !matches!(status, 400 | 200..300) {
            return;
        }
        let encoding = host::response_header("content-encoding");
        let encoding = encoding.as_deref().filter(|name| !name.eq_ignore_ascii_case(b"identity"));
        let media = host::response_header("content-type").unwrap_or_default();
        let reader = match status {
            400 => Some(Reader::Refusal(OverflowScanner::default())),
            _ => Scanner::for_answer(api, &media).map(|scanner| Reader::Usage(Box::new(scanner))),
        };
        self.body = match reader {
            Some(reader) => Body::Read(Decoder::new(encoding, reader)),
            None => Body::Passed(Missing::ContentType),
        };
        if hide && status == 200 && is_stream(&media) {
            if encoding.is_some() {
                self.shown = true;
            } else {
                host::remove_response_header("content-length");
                self.hide = Some(Box::default());
            }
        }
    }

    /// Reads what passes; in the callback for the response body only.
    pub(crate) fn read(&mut self, size: usize, end_of_stream: bool) {
        self.complete |= end_of_stream;
        self.bytes = self.bytes.saturating_add(size as u64);
        let Self { body, hide, .. } = self;
        if !matches!(body, Body::Read(_)) && hide.is_none() {
            return;
        }
        let waited = hide.as_ref().is_some_and(|filter| filter.waiting() > 0);
        let mut out = Vec::new();
        host::read_response_body(0, size, |bytes| {
            if let Body::Read(decoder) = body {
                decoder.feed(bytes);
            }
            if let Some(filter) = hide {
                filter.feed(bytes, &mut out);
            }
        });
        if let Some(filter) = hide {
            if end_of_stream {
                filter.finish(&mut out);
            }
            // Where nothing waited, as many bytes are the same bytes.
            if waited || out.len() != size {
                host::replace_response_body(size, &out);
            }
        }
    }

    /// What all sources told; while the stream lives.
    pub(crate) fn finish(self, sources: &[UsageSource]) -> Told {
        let mut told = Told { output_seen: self.bytes / TOKEN_BYTES, ..Told::default() };
        if let Some(filter) = self.hide {
            told.hidden = filter.hidden();
            told.passed = filter.given_up();
        }
        told.passed += u64::from(self.shown);
        let absent = if self.complete { Missing::Absent } else { Missing::Aborted };
        let body = match self.body {
            Body::None => return told,
            Body::Passed(missing) => Err(missing),
            Body::Read(decoder) => match decoder.finish() {
                Err(missing) => Err(missing),
                Ok(Reader::Refusal(scanner)) => {
                    told.overflow = scanner.overflow();
                    return told;
                }
                Ok(Reader::Usage(scanner)) => {
                    let body = scanner.finish();
                    told.stopped_by_length = body.stopped_by_length;
                    if body.events > 0 {
                        told.output_seen = body.events;
                    }
                    body.usage.map_err(|none| match none {
                        NoUsage::Unreadable => Missing::Unreadable,
                        NoUsage::Absent => Missing::Absent,
                    })
                }
            },
        };
        let body = body.map_err(|missing| match missing {
            Missing::Absent | Missing::Unreadable if !self.complete => Missing::Aborted,
            missing => missing,
        });
        let stated = sources.iter().filter_map(|source| match source {
            UsageSource::Headers => self.headers,
            UsageSource::Metadata => {
                host::property(&METADATA).and_then(|bytes| Usage::from_token_usage(&bytes))
            }
            UsageSource::Body => body.ok(),
        });
        let Merged { usage, disagreed } = usage::merge(stated);
        told.usage = Some(usage.ok_or(body.err().unwrap_or(absent)));
        told.disagreed = disagreed;
        told
    }
}

fn is_stream(content_type: &[u8]) -> bool {
    let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"text/event-stream")
}
