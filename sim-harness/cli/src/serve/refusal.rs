//! Refusals as vLLM words them.
//!
//! Source: vLLM's `renderers/params.py`, `v1/engine/input_processor.py` and
//! `entrypoints/serve/exception_handling`, as of 2026. A context-length refusal
//! states the prompt as "at least" one token more than fits, because vLLM stops
//! tokenizing there; its shortcut for prompts of more than 128 characters a
//! token, which refuses before tokenizing, is left out.

use serde_json::Value;

/// A request that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
}

impl Refusal {
    fn bad_request(message: String, param: Option<&'static str>) -> Self {
        Self { status: 400, message, kind: "BadRequestError", param }
    }

    /// The body is not what the API's schema says. vLLM lists the validator's
    /// findings; this lists the one that came first.
    pub(super) fn invalid(what: &str, place: &str, why: &str) -> Self {
        let message = format!("[{{'type': '{what}', 'loc': ('body', '{place}'), 'msg': '{why}'}}]");
        Self { status: 400, message, kind: "Bad Request", param: None }
    }

    /// The body is not JSON.
    pub(super) fn not_json(offset: usize, why: &str) -> Self {
        let message = format!(
            "[{{'type': 'json_invalid', 'loc': ('body', {offset}), 'msg': 'JSON decode error', \
             'input': {{}}, 'ctx': {{'error': '{why}'}}}}]"
        );
        Self { status: 400, message, kind: "Bad Request", param: None }
    }

    /// The content type is not JSON.
    pub(super) fn media_type() -> Self {
        let message = "['Unsupported Media Type: Only 'application/json' is allowed']".into();
        Self { status: 400, message, kind: "Bad Request", param: None }
    }

    /// No such model here.
    pub(super) fn unknown_model(model: &str) -> Self {
        Self {
            status: 404,
            message: format!("The model `{model}` does not exist."),
            kind: "NotFoundError",
            param: Some("model"),
        }
    }

    /// A parameter is out of its range.
    pub(super) fn parameter(param: &'static str, message: String) -> Self {
        Self::bad_request(message, Some(param))
    }

    /// The cap alone exceeds the window.
    pub(super) fn cap_too_large(param: &'static str, cap: u64, window: u32) -> Self {
        let message = format!(
            "{param}={cap} cannot be greater than max_model_len=max_total_tokens={window}. \
             Please request fewer output tokens. (parameter={param}, value={cap})"
        );
        Self::bad_request(message, Some(param))
    }

    /// Prompt and cap exceed the window. `cap` is 0 when the request names none.
    pub(super) fn context_length(window: u32, cap: u32) -> Self {
        let prompt = window - cap + 1;
        let total = u64::from(window) + 1;
        let message = format!(
            "This model's maximum context length is {window} tokens. However, you requested {cap} \
             output tokens and your prompt contains at least {prompt} input tokens, for a total \
             of at least {total} tokens. Please reduce the length of the input prompt or the \
             number of requested output tokens. (parameter=input_tokens, value={prompt})"
        );
        Self::bad_request(message, Some("input_tokens"))
    }

    /// The prompt fills the window to its last token: no output fits.
    pub(super) fn no_room(window: u32) -> Self {
        let message = format!(
            "The decoder prompt (length {window}) plus the number of requested output tokens (at \
             least 1) is longer than the maximum model length of {window}. Make sure that \
             `max_model_len` is no smaller than the number of text tokens (prompt + requested \
             output tokens)."
        );
        Self::bad_request(message, None)
    }

    /// The prompt has no tokens.
    pub(super) fn empty_prompt() -> Self {
        Self::bad_request("The decoder prompt cannot be empty".into(), None)
    }

    /// An error that the client asked for.
    pub(super) fn induced(status: u16) -> Self {
        let kind = if status < 500 { "BadRequestError" } else { "InternalServerError" };
        Self { status, message: format!("induced by x-sim-status: {status}"), kind, param: None }
    }

    /// The JSON body.
    pub(super) fn body(&self) -> String {
        let text = |value: &str| Value::from(value).to_string();
        format!(
            r#"{{"error":{{"message":{},"type":{},"param":{},"code":{}}}}}"#,
            text(&self.message),
            text(self.kind),
            self.param.map_or_else(|| "null".into(), text),
            self.status
        )
    }
}
