//! What is seen of one answer. Its bytes are read as they pass, and pass as
//! they are, but for one event that the client did not ask for.

use crate::decode::{self, Decoder};
use crate::host;
use tidegate::config::{Config, UsageSource};
use tidegate::gate::Missing;
use tidegate::request::Api;
use tidegate::usage::{self, Filter, Merged, NoUsage, Overflow, OverflowScanner, Usage};

/// Where Envoy's AI Protocol Manager publishes what it read, at a clean end of
/// the stream.
const METADATA: [&str; 3] = ["metadata", "typed_filter_metadata", "envoy.ai.token_usage"];

/// What was seen of the answer.
#[derive(Default)]
pub(crate) struct Watched {
    /// `None` until an answer comes from upstream.
    pub(crate) status: Option<u16>,
    /// The answer ended.
    pub(crate) complete: bool,
    body: Body,
    headers: Option<Usage>,
    /// Takes the usage out of the client's view.
    hide: Option<Box<Filter>>,
    /// It was to be taken out, but could not.
    shown: bool,
}

#[derive(Default)]
enum Body {
    /// Not looked at, and why.
    Passed(Missing),
    Usage(Decoder),
    Error(OverflowScanner),
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
        self.body = match status {
            400 => Body::Error(OverflowScanner::default()),
            200..300 => body(api),
            _ => Body::None,
        };
        if hide && status == 200 && host::response_header("content-type").is_some_and(is_stream) {
            if host::response_header("content-encoding").is_some() {
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
        let Self { body, hide, .. } = self;
        if matches!(body, Body::Passed(_) | Body::None) && hide.is_none() {
            return;
        }
        let waited = hide.as_ref().is_some_and(|filter| filter.waiting() > 0);
        let mut out = Vec::new();
        host::read_response_body(0, size, |bytes| {
            match body {
                Body::Usage(decoder) => decoder.feed(bytes),
                Body::Error(scanner) => scanner.feed(bytes),
                Body::Passed(_) | Body::None => {}
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
        let mut told = Told::default();
        if let Some(filter) = self.hide {
            told.hidden = filter.hidden();
            told.passed = filter.given_up();
        }
        told.passed += u64::from(self.shown);
        let absent = if self.complete { Missing::Absent } else { Missing::Aborted };
        let body = match self.body {
            Body::None => return told,
            Body::Error(scanner) => {
                told.overflow = scanner.overflow();
                return told;
            }
            Body::Passed(missing) => Err(missing),
            Body::Usage(decoder) => decoder.finish().and_then(|body| {
                told.stopped_by_length = body.stopped_by_length;
                body.usage.map_err(|none| match none {
                    NoUsage::Unreadable => Missing::Unreadable,
                    NoUsage::Absent => Missing::Absent,
                })
            }),
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

/// How to read a successful answer, by its headers.
fn body(api: Api) -> Body {
    let encoding = host::response_header("content-encoding");
    let scanner = host::response_header("content-type")
        .and_then(|value| usage::Scanner::for_answer(api, &value));
    match (scanner, encoding) {
        (Some(scanner), encoding) => Body::Usage(Decoder::new(encoding.as_deref(), scanner)),
        (None, Some(encoding)) if !decode::reads(&encoding) => Body::Passed(Missing::Encoded),
        (None, _) => Body::Passed(Missing::ContentType),
    }
}

fn is_stream(content_type: Vec<u8>) -> bool {
    let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"text/event-stream")
}
