//! Request bodies → what to produce, by vLLM's rules.

use serde_json::Value;

use super::pools::Pool;
use super::refusal::Refusal;
use crate::tokenizer::{TOKENS_PER_ANSWER, TOKENS_PER_MESSAGE, Tokenizer};

/// The two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
}

/// A request that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) api: Api,
    pub(super) prompts: Vec<Prompt>,
    /// Choices for each prompt.
    pub(super) n: u32,
    pub(super) stream: bool,
    /// The stream ends with a usage event.
    pub(super) include_usage: bool,
    /// Every event of the stream carries usage.
    pub(super) continuous_usage: bool,
    /// vLLM's own field: the lower, the sooner, where the pool schedules by it.
    pub(super) priority: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) tokens: u32,
    /// Output tokens, at most: the cap, or what the window leaves.
    pub(super) room: u32,
    /// Names the prompt: equal prompts want equal answers.
    pub(super) hash: u64,
    /// Names its full KV blocks: see [`Counter`].
    pub(super) blocks: Vec<u64>,
}

/// vLLM's default for `/v1/completions` without the cap's key.
const COMPLETIONS_CAP: u64 = 16;
/// A bound of ours, far above what clients ask for.
const MOST_CHOICES: u64 = 128;

/// Reads and checks a body. Checks come in vLLM's order: schema, model, cap,
/// length.
pub(super) fn read(api: Api, body: &[u8], pool: &Pool) -> Result<Ask, Refusal> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|e| Refusal::not_json(e.column(), &e.to_string().replace('\'', "")))?;
    if !body.is_object() {
        return Err(Refusal::invalid("model_attributes_type", "", "Input should be an object"));
    }
    let stream = boolean(&body, "stream")?.unwrap_or(false);
    let options = body.get("stream_options").filter(|o| !o.is_null());
    if options.is_some() && !stream {
        let why = "Stream options can only be defined when `stream=True`.";
        return Err(Refusal::parameter("stream_options", why.into()));
    }
    // Given without include_usage, the options ask for usage: vLLM's default.
    let include_usage = match options {
        Some(options) => boolean(options, "include_usage")?.unwrap_or(true),
        None => false,
    };
    let continuous = options.map(|o| boolean(o, "continuous_usage_stats")).transpose()?.flatten();
    let n = whole(&body, "n")?.unwrap_or(1);
    let priority = whole(&body, "priority")?.unwrap_or(0);
    let (cap_field, cap) = cap(api, &body)?;
    let texts = prompts(api, &body, pool)?;
    if let Some(model) = body.get("model").and_then(Value::as_str).filter(|m| !m.is_empty())
        && model != pool.model
    {
        return Err(Refusal::unknown_model(model));
    }
    if !(1..=i128::from(MOST_CHOICES)).contains(&n) {
        let why = format!("n must be at least 1 and at most {MOST_CHOICES}, got {n}.");
        return Err(Refusal::parameter("n", why));
    }
    let cap = match cap {
        None => None,
        Some(cap) if cap < 1 => {
            let why = format!("{cap_field} must be at least 1, got {cap}.");
            return Err(Refusal::parameter(cap_field, why));
        }
        Some(cap) => match u32::try_from(cap) {
            Ok(cap) if cap <= pool.max_model_len => Some(cap),
            _ => {
                let cap = u64::try_from(cap).unwrap_or(u64::MAX);
                return Err(Refusal::cap_too_large(cap_field, cap, pool.max_model_len));
            }
        },
    };
    let mut checked = Vec::with_capacity(texts.len());
    for (counter, hash) in texts {
        let Counter { tokens, blocks, .. } = counter;
        let room = room(tokens, cap, pool.max_model_len)?;
        checked.push(Prompt { tokens, room, hash, blocks });
    }
    Ok(Ask {
        api,
        prompts: checked,
        n: n as u32,
        stream,
        include_usage,
        continuous_usage: include_usage && continuous.unwrap_or(false),
        priority: priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
    })
}

/// Output tokens that a prompt may produce. Prompt and cap must fit together;
/// without a cap the prompt must leave room for one token.
fn room(tokens: u32, cap: Option<u32>, window: u32) -> Result<u32, Refusal> {
    if tokens == 0 {
        return Err(Refusal::empty_prompt());
    }
    let asked = cap.unwrap_or(0);
    if tokens > window - asked {
        return Err(Refusal::context_length(window, asked));
    }
    match window - tokens {
        0 => Err(Refusal::no_room(window)),
        left => Ok(cap.unwrap_or(left)),
    }
}

/// The cap's field and value. `max_completion_tokens` wins over `max_tokens`;
/// completions know only `max_tokens`.
fn cap(api: Api, body: &Value) -> Result<(&'static str, Option<i128>), Refusal> {
    let old = whole(body, "max_tokens")?;
    match api {
        // An explicit null is no cap: the schema's default stands in for a
        // missing key only. Tidegate takes null for a missing key, and so
        // expects 16 here; the backend stays as vLLM is.
        Api::Completions if body.get("max_tokens").is_none() => {
            Ok(("max_tokens", Some(i128::from(COMPLETIONS_CAP))))
        }
        Api::Completions => Ok(("max_tokens", old)),
        Api::Chat => match whole(body, "max_completion_tokens")? {
            Some(new) => Ok(("max_completion_tokens", Some(new))),
            None => Ok(("max_tokens", old)),
        },
    }
}

/// Counts a prompt's tokens, and names its full KV blocks: each by a hash of its
/// tokens and of all before them, so that prompts share the names of what they
/// have in common.
#[derive(Clone, Debug)]
struct Counter {
    tokenizer: Tokenizer,
    block_size: u32,
    tokens: u32,
    chain: u64,
    blocks: Vec<u64>,
}

impl Counter {
    fn new(pool: &Pool) -> Self {
        Self {
            tokenizer: pool.tokenizer,
            block_size: pool.engine.block_size,
            tokens: 0,
            chain: FNV_START,
            blocks: Vec::new(),
        }
    }

    fn token(&mut self, token: u64) {
        self.chain = fnv(self.chain, &token.to_le_bytes());
        self.tokens = self.tokens.saturating_add(1);
        if self.tokens.is_multiple_of(self.block_size) {
            self.blocks.push(self.chain);
        }
    }

    fn text(&mut self, text: &str) {
        for token in self.tokenizer.encode(text) {
            self.token(token.into());
        }
    }

    /// Tokens of the chat template, no vocabulary has them.
    fn template(&mut self, tokens: u32) {
        for token in 0..tokens {
            self.token(u64::from(token) | 1 << 32);
        }
    }
}

/// The prompts, counted, and their hashes.
fn prompts(api: Api, body: &Value, pool: &Pool) -> Result<Vec<(Counter, u64)>, Refusal> {
    let field = if api == Api::Chat { "messages" } else { "prompt" };
    let missing = || Refusal::invalid("missing", field, "Field required");
    let value = body.get(field).filter(|v| !v.is_null()).ok_or_else(missing)?;
    let wrong = |why: &str| Refusal::invalid("list_type", field, why);
    let mut counter = Counter::new(pool);
    if api == Api::Chat {
        let messages = value.as_array().ok_or_else(|| wrong("Input should be a valid list"))?;
        let hash = chat(messages, body.get("tools"), &mut counter)?;
        return Ok(vec![(counter, hash)]);
    }
    let one = |value: &Value| {
        let mut counter = counter.clone();
        match value {
            Value::String(text) => {
                counter.text(text);
                Some((counter, hash(text)))
            }
            // Token ids: one each.
            Value::Array(ids) => {
                for id in ids {
                    counter.token(id.as_u64()?);
                }
                Some((counter, hash(&value.to_string())))
            }
            _ => None,
        }
    };
    if let Some(prompt) = one(value) {
        return Ok(vec![prompt]);
    }
    let several = value.as_array().map(|list| list.iter().map(one).collect::<Option<Vec<_>>>());
    match several.flatten() {
        Some(prompts) if !prompts.is_empty() => Ok(prompts),
        _ => Err(wrong("Input should be a string, a list of strings or lists of token ids")),
    }
}

/// Counts a chat's tokens; gives the hash of its contents.
fn chat(messages: &[Value], tools: Option<&Value>, counter: &mut Counter) -> Result<u64, Refusal> {
    // The template writes tools as JSON before the messages; how exactly
    // differs by model.
    if let Some(tools) = tools.filter(|tools| !tools.is_null()) {
        counter.text(&tools.to_string());
    }
    let mut all = String::new();
    for message in messages {
        let Some(role) = message.get("role").and_then(Value::as_str) else {
            return Err(Refusal::invalid("missing", "messages", "role: Field required"));
        };
        let content = match message.get("content") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            // vLLM joins the text parts of a message by line ends.
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            Some(_) => {
                let why = "content: Input should be a string or a list";
                return Err(Refusal::invalid("string_type", "messages", why));
            }
        };
        counter.template(TOKENS_PER_MESSAGE);
        counter.text(role);
        counter.text(&content);
        if let Some(name) = message.get("name").and_then(Value::as_str) {
            counter.template(1);
            counter.text(name);
        }
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            counter.text(&calls.to_string());
        }
        all.push_str(&content);
    }
    counter.template(TOKENS_PER_ANSWER);
    Ok(hash(&all))
}

fn boolean(body: &Value, field: &str) -> Result<Option<bool>, Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(Refusal::invalid("bool_parsing", field, "Input should be a valid boolean")),
    }
}

/// A whole number as vLLM's validator reads one: 1024, 1024.0, 1e3 and "1024"
/// are, null is absent, all else is an error.
fn whole(body: &Value, field: &str) -> Result<Option<i128>, Refusal> {
    let wrong = || Refusal::invalid("int_parsing", field, "Input should be a valid integer");
    let float = |value: f64| (value % 1.0 == 0.0 && value.abs() < 1e30).then_some(value as i128);
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => {
            let whole = number.as_i128().or_else(|| number.as_f64().and_then(float));
            whole.map(Some).ok_or_else(wrong)
        }
        Some(Value::Bool(value)) => Ok(Some(i128::from(*value))),
        Some(Value::String(text)) => {
            let text = text.trim();
            let whole = text.parse().ok().or_else(|| text.parse().ok().and_then(float));
            whole.map(Some).ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

/// Only to tell prompts apart.
fn hash(text: &str) -> u64 {
    fnv(FNV_START, text.as_bytes())
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, continued.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serve::parse_pools;

    fn pool() -> Pool {
        let text =
            r#"{"pools": [{"name": "a", "model": "m", "max_model_len": 100, "ports": [0]}]}"#;
        parse_pools(text.as_bytes()).unwrap().remove(0)
    }

    fn ask(api: Api, body: &Value) -> Result<Ask, Refusal> {
        read(api, body.to_string().as_bytes(), &pool())
    }

    fn refused(api: Api, body: &Value) -> String {
        ask(api, body).unwrap_err().body()
    }

    #[test]
    fn caps_follow_vllm() {
        let chat = |fields: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            ask(Api::Chat, &body).map(|ask| ask.prompts[0].room).map_err(|r| r.body())
        };
        // 3 + 3 + 1 + 1 tokens of prompt leave 92.
        assert_eq!(chat(json!({})), Ok(92));
        assert_eq!(chat(json!({"max_tokens": 7})), Ok(7));
        assert_eq!(chat(json!({"max_tokens": 7, "max_completion_tokens": 5})), Ok(5));
        assert_eq!(chat(json!({"max_tokens": 7, "max_completion_tokens": null})), Ok(7));
        assert_eq!(chat(json!({"max_tokens": 92})), Ok(92));
        for lax in [json!(7.0), json!("7"), json!(" 7 "), json!("7.0"), json!(70e-1)] {
            assert_eq!(chat(json!({"max_tokens": lax})), Ok(7));
        }
        for wrong in [json!(7.5), json!("seven"), json!([7]), json!({})] {
            assert!(chat(json!({"max_tokens": wrong})).unwrap_err().contains("valid integer"));
        }
        assert!(chat(json!({"max_tokens": 0})).unwrap_err().contains("at least 1, got 0"));
        assert!(chat(json!({"max_tokens": -1})).unwrap_err().contains("at least 1, got -1"));
        let over = chat(json!({"max_tokens": 93})).unwrap_err();
        assert!(over.contains(
            "This model's maximum context length is 100 tokens. However, you requested 93 output \
             tokens and your prompt contains at least 8 input tokens, for a total of at least 101 \
             tokens. Please reduce the length of the input prompt or the number of requested \
             output tokens. (parameter=input_tokens, value=8)"
        ));
        assert!(over.ends_with(r#""type":"BadRequestError","param":"input_tokens","code":400}}"#));
        let huge = chat(json!({"max_completion_tokens": 101})).unwrap_err();
        assert!(huge.contains("max_completion_tokens=101 cannot be greater than"), "{huge}");
        assert!(chat(json!({"max_tokens": 1e300})).unwrap_err().contains("valid integer"));
    }

    #[test]
    fn completions_without_a_cap_get_sixteen() {
        let room = |body: Value| ask(Api::Completions, &body).unwrap().prompts[0].room;
        assert_eq!(room(json!({"prompt": "hello"})), 16);
        // `max_tokens: int | None = 16`: null is None, up to the window.
        assert_eq!(room(json!({"prompt": "hello", "max_tokens": null})), 99);
        assert_eq!(room(json!({"prompt": "hello", "max_tokens": 40})), 40);
        // Only chat knows this field.
        assert_eq!(room(json!({"prompt": "hello", "max_completion_tokens": 40})), 16);
    }

    #[test]
    fn prompts_come_in_four_shapes() {
        let tokens = |prompt: Value| -> Vec<u32> {
            let ask = ask(Api::Completions, &json!({"prompt": prompt})).unwrap();
            ask.prompts.iter().map(|p| p.tokens).collect()
        };
        assert_eq!(tokens(json!("hello")), [1]);
        assert_eq!(tokens(json!(["hello", "hello world"])), [1, 2]);
        assert_eq!(tokens(json!([5, 6, 7])), [3]);
        assert_eq!(tokens(json!([[5, 6, 7], [8]])), [3, 1]);
        for (wrong, why) in [
            (json!([]), "cannot be empty"),
            (json!(""), "cannot be empty"),
            (json!(5), "should be a string"),
            (json!([["a"]]), "should be a string"),
            (Value::Null, "Field required"),
        ] {
            let error = refused(Api::Completions, &json!({"prompt": wrong}));
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_prompt_as_long_as_the_window_is_refused() {
        let body = |tokens: usize| json!({"prompt": vec![1; tokens], "max_tokens": 1});
        assert_eq!(ask(Api::Completions, &body(99)).unwrap().prompts[0].room, 1);
        assert!(refused(Api::Completions, &body(100)).contains("maximum context length is 100"));
        let words = |count: usize| {
            let content = format!("a{}", " a".repeat(count - 8));
            json!({"messages": [{"role": "user", "content": content}]})
        };
        assert_eq!(ask(Api::Chat, &words(99)).unwrap().prompts[0].room, 1);
        assert!(refused(Api::Chat, &words(100)).contains("decoder prompt (length 100) plus"));
        let over = refused(Api::Chat, &words(150));
        assert!(over.contains("requested 0 output tokens and your prompt contains at least 101"));
    }

    #[test]
    fn the_template_is_counted() {
        let tokens = |messages: Value| {
            ask(Api::Chat, &json!({"messages": messages})).unwrap().prompts[0].tokens
        };
        assert_eq!(tokens(json!([{"role": "user", "content": "hello"}])), 3 + 4 + 1);
        let parts = json!([{"type": "text", "text": "hello"}, {"type": "text", "text": "hello"}]);
        assert_eq!(tokens(json!([{"role": "user", "content": parts}])), 3 + 4 + 3);
        assert_eq!(tokens(json!([{"role": "assistant", "content": null}])), 3 + 4);
    }

    #[test]
    fn prompts_share_the_names_of_what_they_have_in_common() {
        let blocks = |prompt: Vec<u32>| {
            ask(Api::Completions, &json!({"prompt": prompt})).unwrap().prompts[0].blocks.clone()
        };
        let (one, two) = (blocks((0..40).collect()), blocks((0..20).chain(30..50).collect()));
        assert_eq!((one.len(), two.len()), (2, 2), "40 tokens are two full blocks of 16");
        assert_eq!(one[0], two[0]);
        assert_ne!(one[1], two[1]);
        // The same tokens later are other blocks.
        let twice = blocks((0..16).chain(0..16).collect());
        assert_ne!(twice[0], twice[1]);
    }

    #[test]
    fn usage_in_streams_is_asked_for() {
        let flags = |fields: Value| {
            let mut body = json!({"prompt": "a"});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let ask = ask(Api::Completions, &body).unwrap();
            (ask.stream, ask.include_usage, ask.continuous_usage)
        };
        let with = |options: Value| flags(json!({"stream": true, "stream_options": options}));
        assert_eq!(flags(json!({})), (false, false, false));
        assert_eq!(flags(json!({"stream": true})), (true, false, false));
        assert_eq!(with(json!({"include_usage": false})), (true, false, false));
        assert_eq!(with(json!({"include_usage": true})), (true, true, false));
        assert_eq!(with(json!({})), (true, true, false));
        let both = json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(with(both), (true, true, true));
        let alone = json!({"include_usage": false, "continuous_usage_stats": true});
        assert_eq!(with(alone), (true, false, false));
        let error = refused(Api::Completions, &json!({"prompt": "a", "stream_options": {}}));
        assert!(error.contains("when `stream=True`"), "{error}");
    }

    #[test]
    fn other_refusals() {
        let body = json!({"model": "other", "prompt": "a"});
        assert_eq!(
            refused(Api::Completions, &body),
            r#"{"error":{"message":"The model `other` does not exist.","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert!(refused(Api::Chat, &json!({})).contains("'messages'"));
        assert!(refused(Api::Chat, &json!({"messages": "hi"})).contains("valid list"));
        assert!(refused(Api::Chat, &json!({"messages": [{}]})).contains("role"));
        assert!(refused(Api::Completions, &json!({"prompt": "a", "n": 0})).contains("got 0"));
        assert!(refused(Api::Chat, &json!([])).contains("an object"));
        let broken = read(Api::Chat, b"{\"messages\": [", &pool()).unwrap_err();
        assert_eq!(broken.status, 400);
        assert!(broken.body().contains("JSON decode error"), "{}", broken.body());
    }
}
