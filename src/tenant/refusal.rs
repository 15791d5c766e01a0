//! How a refusal reads, in the shape of each API's own errors.
//!
//! Sources: <https://platform.openai.com/docs/guides/error-codes>,
//! <https://docs.anthropic.com/en/api/errors>,
//! <https://ai.google.dev/gemini-api/docs/troubleshooting>.

use super::outcome::{Cause, Refusal};
use crate::request::Api;
use serde_json::{Value, json};

impl Refusal {
    /// The status of the answer: 429 for what may pass later, else what tells
    /// a client not to try again.
    pub fn status(&self) -> u16 {
        match self.cause {
            Cause::TooLarge => 400,
            Cause::Suspended => 403,
            _ => 429,
        }
    }

    /// The JSON body in the format of the request. It names the tenant's
    /// limits, never a key or a text.
    pub fn body(&self, api: Api, tenant: &str) -> Vec<u8> {
        let message = self.message(tenant);
        let error: Value = match api {
            Api::Messages => {
                let kind = match self.cause {
                    Cause::TooLarge => "invalid_request_error",
                    Cause::Suspended => "permission_error",
                    _ => "rate_limit_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            Api::Gemini => {
                let status = match self.cause {
                    Cause::TooLarge => "INVALID_ARGUMENT",
                    Cause::Suspended => "PERMISSION_DENIED",
                    _ => "RESOURCE_EXHAUSTED",
                };
                json!({"error": {"code": self.status(), "message": message, "status": status}})
            }
            _ => {
                let (kind, code) = match self.cause {
                    Cause::TooLarge => ("invalid_request_error", "request_exceeds_limit"),
                    Cause::Suspended => ("permission_error", "tenant_suspended"),
                    Cause::Requests => ("requests", "rate_limit_exceeded"),
                    _ => ("tokens", "rate_limit_exceeded"),
                };
                json!({"error": {
                    "message": message, "type": kind, "param": null, "code": code,
                }})
            }
        };
        error.to_string().into_bytes()
    }

    fn message(&self, tenant: &str) -> String {
        let need = self.need;
        let again =
            self.retry_after.map_or(String::new(), |secs| format!(" Try again in {secs} s."));
        match self.cause {
            Cause::Tokens => {
                let left = self.standing.tokens.map_or(String::new(), |share| {
                    format!(" {} of {} are left.", share.remaining, share.limit)
                });
                format!(
                    "Token limit of tenant {tenant} reached: this request needs up to {need} tokens.{left}{again}"
                )
            }
            Cause::TokensInFlight => format!(
                "Tenant {tenant} has as many tokens in flight as it may: this request needs up to {need} more.{again}"
            ),
            Cause::Requests => {
                format!("Tenant {tenant} has as many requests open as it may.{again}")
            }
            Cause::Capacity => format!("The pool has no room for tenant {tenant} now.{again}"),
            Cause::TooLarge => format!(
                "This request needs up to {need} tokens, more than the limits of tenant {tenant} ever let \
                 through at once. Send a shorter prompt or a smaller limit on output tokens."
            ),
            Cause::Suspended => format!("Tenant {tenant} is suspended."),
            Cause::Busy => format!("The limits of tenant {tenant} could not be checked.{again}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::{Share, Standing};
    use crate::time::Span;

    #[test]
    fn each_api_gets_its_own_shape() {
        let share = Share { limit: 1000, remaining: 7, reset: Span::default() };
        let standing = Standing { tokens: Some(share), requests: None };
        let refusal = |cause, retry_after| Refusal { cause, retry_after, need: 500, standing };
        let body = |refusal: Refusal, api| -> Value {
            serde_json::from_slice(&refusal.body(api, "acme")).unwrap()
        };
        let tokens = refusal(Cause::Tokens, Some(3));
        assert_eq!(tokens.status(), 429);
        let openai = body(tokens, Api::Chat);
        assert_eq!(openai["error"]["type"], "tokens");
        assert_eq!(openai["error"]["code"], "rate_limit_exceeded");
        let message = "Token limit of tenant acme reached: this request needs up to 500 tokens. \
                       7 of 1000 are left. Try again in 3 s.";
        assert_eq!(openai["error"]["message"], message);
        let anthropic = body(tokens, Api::Messages);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "rate_limit_error");
        let gemini = body(tokens, Api::Gemini);
        assert_eq!(gemini["error"]["code"], 429);
        assert_eq!(gemini["error"]["status"], "RESOURCE_EXHAUSTED");
        // What can never pass is no 429: clients would try again for ever.
        assert_eq!(refusal(Cause::TooLarge, None).status(), 400);
        assert_eq!(refusal(Cause::Suspended, None).status(), 403);
        for cause in Cause::ALL {
            for (_, api) in Api::WORDS {
                assert!(body(refusal(cause, Some(1)), api)["error"]["message"].is_string());
            }
        }
    }
}
