//! Whose a request is, and what its tenant is told about limits.

use crate::host::{self, RequestHead};
use std::sync::Arc;
use tidegate::config::{Settings, TenantSource, Tenants};
use tidegate::request::Api;
use tidegate::tenant::{Entitlement, Refusal, Standing};
use tidegate::time::Span;

/// The tenant of a request: that of its route, else the one that the first
/// source which says anything names. A name or a key that nobody has is as if
/// there were none.
pub(crate) fn resolve(
    tenants: &Tenants,
    settings: &Settings,
    head: &RequestHead,
) -> Arc<Entitlement> {
    let route = settings.tenant.as_deref().and_then(|name| tenants.named(name.as_bytes()));
    let found = route.or_else(|| {
        tenants.sources.iter().find_map(|source| match source {
            TenantSource::Property(path) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                Some(tenants.named(&said(host::property(&path))?))
            }
            TenantSource::Header(name) => Some(tenants.named(&said(head.get(name))?)),
            TenantSource::ApiKey(name) => Some(tenants.with_key(&said(head.get(name))?)),
        })?
    });
    Arc::clone(found.unwrap_or_else(|| tenants.default()))
}

/// What says nothing is as if it were not there.
fn said(value: Option<Vec<u8>>) -> Option<Vec<u8>> {
    value.filter(|value| !value.trim_ascii().is_empty())
}

/// Headers that tell where a tenant stands, as OpenAI names them:
/// <https://platform.openai.com/docs/guides/rate-limits>.
pub(crate) fn headers(standing: &Standing) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    if let Some(tokens) = standing.tokens {
        headers.push(("x-ratelimit-limit-tokens", tokens.limit.to_string()));
        headers.push(("x-ratelimit-remaining-tokens", tokens.remaining.to_string()));
        headers.push(("x-ratelimit-reset-tokens", duration(tokens.reset)));
    }
    if let Some(requests) = standing.requests {
        headers.push(("x-ratelimit-limit-requests", requests.limit.to_string()));
        headers.push(("x-ratelimit-remaining-requests", requests.remaining.to_string()));
        headers.push(("x-ratelimit-reset-requests", duration(requests.reset)));
    }
    headers
}

/// Seconds as OpenAI writes them, such as `1.250s`; rounded up.
fn duration(span: Span) -> String {
    let millis = span.as_nanos().div_ceil(1_000_000);
    format!("{}.{:03}s", millis / 1000, millis % 1000)
}

/// Answers a refused request; while its headers are held.
pub(crate) fn refuse(refusal: &Refusal, api: Api, tenant: &str, with_headers: bool) {
    host::publish("tidegate_refused", refusal.cause.word().as_bytes());
    let mut all = vec![("content-type", "application/json".to_owned())];
    if let Some(seconds) = refusal.retry_after {
        all.push(("retry-after", seconds.to_string()));
    }
    if with_headers {
        all.extend(headers(&refusal.standing));
    }
    host::answer(refusal.status(), &all, &refusal.body(api, tenant));
}
