//! The facts of a body as a parsed tree gives them: what the scanner must
//! give too. Written without the scanner's engine and tables.

use super::super::*;
use crate::estimate::Sampler;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

pub(super) fn oracle(api: Api, path: &str, body: &[u8]) -> Result<RequestFacts, Invalid> {
    let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let value: Value = serde_json::from_slice(json).map_err(|_| Invalid)?;
    let mut facts = RequestFacts::new(api);
    facts.model = value
        .get("model")
        .and_then(Value::as_str)
        .map(|name| name.as_bytes()[..name.len().min(MODEL_MAX)].to_vec());
    if api == Api::Unknown {
        facts.text = Tally::of(Class::Unseen, body.len() as u64);
        return Ok(facts);
    }
    let root = value.as_object().ok_or(Invalid)?;
    facts.stream = root.get("stream") == Some(&Value::Bool(true));
    let mut sum = Sum::default();
    match api {
        Api::Chat => chat(root, &mut facts, &mut sum),
        Api::Completions => completions(root, &mut facts, &mut sum),
        Api::Responses => responses(root, &mut facts, &mut sum),
        Api::Embeddings => {
            sum.messages(root.get("messages"));
            prompts(&[root.get("input")], Some(part)).into_facts(&mut facts, &mut sum);
        }
        Api::Rerank => rerank(root, &mut facts, &mut sum),
        Api::Messages => anthropic(root, &mut facts, &mut sum),
        Api::Gemini => {
            facts.model = Some(b"gemini-x".to_vec());
            facts.stream = path.contains(":stream");
            gemini(root, &mut facts, &mut sum);
        }
        Api::Generate => generate(root, &mut facts, &mut sum),
        Api::Unknown => {}
    }
    for text in [Some(&mut facts.text), facts.largest.as_mut()].into_iter().flatten() {
        text.merge(&sum.text);
        text.add(Class::Tools, sum.tools);
    }
    facts.messages = sum.messages;
    facts.media = sum.media;
    Ok(facts)
}

#[derive(Clone, Default)]
struct Sum {
    text: Tally,
    tools: u64,
    messages: u64,
    media: Media,
}

impl Sum {
    fn text(&mut self, text: &str) {
        let mut sampler = Sampler::default();
        sampler.feed(text.as_bytes(), &mut self.text);
        sampler.finish(&mut self.text);
    }

    /// A string, if it is one.
    fn string(&mut self, value: Option<&Value>) {
        self.text(value.and_then(Value::as_str).unwrap_or(""));
    }

    fn json(&mut self, value: Option<&Value>) {
        self.tools += match value {
            Some(value @ (Value::Array(_) | Value::Object(_) | Value::String(_))) => {
                weight(value) - 1
            }
            _ => 0,
        };
    }

    fn merge(&mut self, other: &Self) {
        self.text.merge(&other.text);
        self.tools += other.tools;
        self.messages += other.messages;
        let (mine, other) = (&mut self.media, &other.media);
        mine.images += other.images;
        mine.audio += other.audio;
        mine.videos += other.videos;
        mine.files += other.files;
    }

    /// Text, or a list of text and of objects.
    fn content(&mut self, value: Option<&Value>, object: fn(&Object) -> Self) {
        match value {
            Some(Value::String(text)) => self.text(text),
            Some(Value::Array(items)) => {
                for item in items {
                    match item {
                        Value::String(text) => self.text(text),
                        Value::Object(one) => self.merge(&object(one)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// A list of OpenAI's messages.
    fn messages(&mut self, value: Option<&Value>) {
        for message in value.and_then(Value::as_array).into_iter().flatten() {
            let Some(message) = message.as_object() else { continue };
            self.messages += 1;
            self.content(message.get("content"), part);
            self.json(message.get("tool_calls"));
            self.json(message.get("function_call"));
        }
    }

    /// A root text counts as one message.
    fn plain(&mut self, value: Option<&Value>, object: fn(&Object) -> Self) {
        let mut sum = Self::default();
        sum.content(value, object);
        sum.messages += u64::from(sum.messages == 0 && sum.text.total() > 0);
        self.merge(&sum);
    }
}

/// Text, quotes and brackets, and one byte of separator for each value.
fn weight(value: &Value) -> u64 {
    1 + match value {
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => 2 + items.iter().map(weight).sum::<u64>(),
        Value::Object(members) => {
            2 + members.iter().map(|(key, value)| key.len() as u64 + 3 + weight(value)).sum::<u64>()
        }
        _ => 4,
    }
}

fn integer(value: Option<&Value>) -> Cap {
    Cap::from(match value {
        None | Some(Value::Null) => return Cap::Absent,
        Some(Value::String(text)) => {
            lax_integer(text.as_bytes(), true).filter(|_| text.len() <= 64)
        }
        Some(Value::Number(n)) => n.as_u64().or_else(|| {
            let value = n.as_f64().unwrap();
            (value == value.trunc()).then_some(value as u64)
        }),
        Some(_) => None,
    })
}

/// Reads limits in the order in which they count.
fn limits(facts: &mut RequestFacts, caps: &[Cap], n: &[Cap], best_of: Cap) {
    let first = |all: &[Cap]| all.iter().copied().find(|cap| *cap != Cap::Absent);
    facts.cap = first(caps).unwrap_or(Cap::Absent);
    facts.n = first(n).and_then(Cap::tokens).unwrap_or(1);
    facts.best_of = best_of.tokens().unwrap_or(1);
    let all = caps.iter().chain(n).chain([&best_of]);
    facts.unreadable = all.filter(|cap| **cap == Cap::Unreadable).count() as u64;
}

fn sampling(root: &Object, facts: &mut RequestFacts, caps: &[&str]) {
    let caps: Vec<Cap> = caps.iter().map(|key| integer(root.get(*key))).collect();
    limits(facts, &caps, &[integer(root.get("n"))], integer(root.get("best_of")));
    let options = root.get("stream_options").and_then(Value::as_object);
    facts.include_usage =
        options.and_then(|options| options.get("include_usage")).and_then(Value::as_bool);
}

fn kind(of: &Object, key: &str) -> Option<String> {
    of.get(key).and_then(Value::as_str).map(|kind| kind.bytes().take(64).map(char::from).collect())
}

fn there(of: &Object, key: &str) -> bool {
    of.get(key).is_some_and(|value| !value.is_null())
}

fn count(media: &mut Media, kind: &str) {
    match kind {
        "image" => media.images += 1,
        "audio" => media.audio += 1,
        "video" => media.videos += 1,
        _ => media.files += 1,
    }
}

/// Images, audio and video by a `type` or a MIME type; `""` for text.
fn family(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "text"
        | "input_text"
        | "output_text"
        | "refusal"
        | "message"
        | "function_call"
        | "function_call_output"
        | "custom_tool_call"
        | "custom_tool_call_output"
        | "tool_use"
        | "tool_result"
        | "server_tool_use"
        | "mcp_tool_use"
        | "mcp_tool_result"
        | "search_result"
        | "tool_reference"
        | "item_reference" => "",
        "reasoning" | "thinking" | "redacted_thinking" => "reasoning",
        "image"
        | "image_url"
        | "input_image"
        | "image_embeds"
        | "image_pil"
        | "computer_screenshot"
        | "image_generation_call" => "image",
        "audio" | "audio_url" | "input_audio" | "audio_embeds" => "audio",
        "video" | "video_url" | "input_video" | "video_embeds" => "video",
        "file" | "input_file" | "document" | "container_upload" => "file",
        _ => ["image", "audio", "video"]
            .into_iter()
            .find(|name| kind.strip_prefix(*name).is_some_and(|rest| rest.starts_with('/')))?,
    })
}

fn part(part: &Object) -> Sum {
    let mut sum = Sum::default();
    sum.string(part.get("text"));
    sum.string(part.get("refusal"));
    let text = |key: &str| part.get(key).is_some_and(Value::is_string);
    let named = kind(part, "type").and_then(|kind| family(&kind));
    let found = named.unwrap_or_else(|| match () {
        () if text("text") || text("refusal") => "",
        () if there(part, "image_url") => "image",
        () if there(part, "input_audio") || there(part, "audio_url") => "audio",
        () if there(part, "video_url") => "video",
        () => "file",
    });
    if !matches!(found, "" | "reasoning") {
        count(&mut sum.media, found);
    }
    sum
}

fn chat(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    sampling(root, facts, &["max_completion_tokens", "max_tokens"]);
    sum.messages(root.get("messages"));
    sum.json(root.get("tools"));
    sum.json(root.get("functions"));
}

fn completions(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    sampling(root, facts, &["max_tokens"]);
    sum.media.files += items(root.get("prompt_embeds"));
    prompts(&[root.get("prompt")], None).into_facts(facts, sum);
}

/// One thing, or how many things in a list of lists.
fn items(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Array(all)) => all.iter().map(|one| items(Some(one))).sum(),
        Some(Value::String(_) | Value::Object(_)) => 1,
        _ => 0,
    }
}

fn responses(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    limits(facts, &[integer(root.get("max_output_tokens"))], &[], Cap::Absent);
    sum.json(root.get("tools"));
    let instructions = root.get("instructions").filter(|value| value.is_string());
    sum.plain(instructions, |_| Sum::default());
    sum.plain(root.get("input"), |item| {
        let mut sum = Sum::default();
        let named = kind(item, "type").and_then(|kind| family(&kind));
        if named == Some("reasoning") {
            return sum;
        }
        sum.messages = 1;
        sum.media.images += u64::from(named == Some("image"));
        sum.content(item.get("content"), part);
        match item.get("output") {
            Some(Value::Object(one)) => sum.merge(&part(one)),
            output => sum.content(output, part),
        }
        sum.json(item.get("arguments"));
        sum.string(item.get("input"));
        sum.string(item.get("code"));
        sum.json(item.get("action"));
        sum.json(item.get("tools"));
        sum
    });
}

/// Prompts as text, as ids, and what is no text in them.
#[derive(Default)]
struct Prompts {
    texts: Vec<Tally>,
    ids: Vec<u64>,
    media: Sum,
}

fn prompts(lists: &[Option<&Value>], object: Option<fn(&Object) -> Sum>) -> Prompts {
    let mut all = Prompts::default();
    let mut one = |value: &Value| match (value, object) {
        (Value::String(text), _) => {
            let mut sum = Sum::default();
            sum.text(text);
            all.texts.push(sum.text);
        }
        (Value::Object(value), Some(object)) => {
            let sum = object(value);
            all.texts.push(sum.text.clone());
            all.media.merge(&Sum { media: sum.media, ..Sum::default() });
        }
        _ => {}
    };
    let mut ids = Vec::new();
    for list in lists.iter().flatten() {
        let Value::Array(items) = list else {
            one(list);
            continue;
        };
        items.iter().for_each(&mut one);
        let numbers = |items: &[Value]| items.iter().filter(|item| item.is_number()).count() as u64;
        ids.extend(items.iter().filter_map(Value::as_array).map(|inner| numbers(inner)));
        ids.extend(Some(numbers(items)).filter(|loose| *loose > 0));
    }
    all.ids = ids;
    all
}

impl Prompts {
    fn count(&self) -> u64 {
        (self.texts.len() + self.ids.len()) as u64
    }

    fn largest(&self) -> Tally {
        let mut largest = Tally::default();
        for text in &self.texts {
            if text.total() > largest.total() {
                largest = text.clone();
            }
        }
        largest
    }

    fn into_facts(self, facts: &mut RequestFacts, sum: &mut Sum) {
        facts.prompts = self.count().max(1);
        facts.largest = (self.count() > 1).then(|| self.largest());
        self.texts.iter().for_each(|text| facts.text.merge(text));
        facts.token_ids = self.ids.iter().sum();
        facts.largest_token_ids = self.ids.iter().copied().max().unwrap_or(0);
        sum.merge(&self.media);
    }
}

fn rerank(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    let side = |keys: &[&str]| {
        let lists: Vec<_> = keys.iter().map(|key| root.get(*key)).collect();
        let document: fn(&Object) -> Sum = |document| {
            let mut sum = Sum::default();
            sum.string(document.get("text"));
            sum.content(document.get("content"), part);
            sum.media.images += items(document.get("image"));
            sum
        };
        prompts(&lists, Some(document))
    };
    let sides = [
        side(&["query", "queries", "text_1", "data_1"]),
        side(&["documents", "text_2", "data_2", "items"]),
    ];
    let pairs = sides[0].count().max(sides[1].count());
    let mut largest = Tally::default();
    for side in &sides {
        let times = if side.count() == 1 { pairs } else { 1 };
        for _ in 0..times {
            side.texts.iter().for_each(|text| facts.text.merge(text));
        }
        facts.token_ids += side.ids.iter().sum::<u64>() * times;
        facts.largest_token_ids += side.ids.iter().copied().max().unwrap_or(0);
        largest.merge(&side.largest());
        sum.merge(&side.media);
    }
    facts.prompts = pairs.max(1);
    facts.largest = (pairs > 1).then_some(largest);
}

fn anthropic(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    limits(facts, &[integer(root.get("max_tokens"))], &[], Cap::Absent);
    sum.json(root.get("tools"));
    sum.plain(root.get("system"), block);
    for message in root.get("messages").and_then(Value::as_array).into_iter().flatten() {
        if let Some(message) = message.as_object() {
            sum.messages += 1;
            sum.content(message.get("content"), block);
        }
    }
}

fn block(block: &Object) -> Sum {
    any_block(block, true)
}

fn any_block(block: &Object, outer: bool) -> Sum {
    let mut sum = Sum::default();
    for key in ["text", "title", "context"] {
        sum.string(block.get(key));
    }
    let is = |key: &str, of: fn(&Value) -> bool| block.get(key).is_some_and(of);
    let mut known = is("text", Value::is_string);
    if outer {
        sum.content(block.get("content"), |inner| any_block(inner, false));
        sum.json(block.get("input"));
        known |= is("content", |value| value.is_string() || value.is_array());
        known |= is("input", |value| value.is_string() || value.is_array() || value.is_object());
    }
    let named = kind(block, "type").and_then(|kind| family(&kind));
    let source = block.get("source").and_then(Value::as_object);
    let says = named.filter(|kind| *kind != "file");
    if let Some(source) = source {
        let mut inner = Sum::default();
        let plain = kind(source, "type").and_then(|kind| family(&kind)) == Some("");
        let data = source.get("data").filter(|data| plain && data.is_string());
        inner.string(data);
        inner.content(source.get("content"), |piece| {
            let mut sum = Sum::default();
            sum.string(piece.get("text"));
            match kind(piece, "type").and_then(|kind| family(&kind)) {
                Some("" | "reasoning") => {}
                Some("file") => sum.media.files += 1,
                Some(kind) => count(&mut sum.media, kind),
                None => {
                    sum.media.files += u64::from(!piece.get("text").is_some_and(Value::is_string));
                }
            }
            sum
        });
        let read = data.is_some()
            || source.get("content").is_some_and(|value| value.is_string() || value.is_array());
        inner.media.files += u64::from(!read);
        if says.is_some() {
            inner.media.files = 0;
        }
        sum.merge(&inner);
    }
    match says {
        Some("" | "reasoning") => {}
        Some(kind) => count(&mut sum.media, kind),
        None => {
            let bare = source.is_none() && (!known || named == Some("file"));
            sum.media.files += u64::from(bare);
        }
    }
    sum
}

fn gemini(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    let config = |object: &str, keys: [&str; 2]| {
        let config = root.get(object).filter(|config| config.is_object());
        let [one, other] = keys.map(|key| integer(config.and_then(|config| config.get(key))));
        if one == Cap::Absent { other } else { one }
    };
    let both = |keys| ["generationConfig", "generation_config"].map(|object| config(object, keys));
    let first = |all: [Cap; 2]| if all[0] == Cap::Absent { all[1] } else { all[0] };
    let cap = first(both(["maxOutputTokens", "max_output_tokens"]));
    let n = first(both(["candidateCount", "candidate_count"]));
    limits(facts, &[cap], &[n], Cap::Absent);
    sum.json(root.get("tools"));
    for content in one_or_more(root.get("contents")) {
        sum.merge(&gemini_content(content));
    }
    for key in ["systemInstruction", "system_instruction"] {
        if let Some(content) = root.get(key).and_then(Value::as_object) {
            sum.merge(&gemini_content(content));
        }
    }
}

fn one_or_more(value: Option<&Value>) -> Vec<&Object> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_object).collect(),
        Some(Value::Object(one)) => vec![one],
        _ => Vec::new(),
    }
}

fn gemini_content(content: &Object) -> Sum {
    let mut sum = Sum { messages: 1, ..Sum::default() };
    for part in one_or_more(content.get("parts")) {
        if part.get("thought") != Some(&Value::Bool(true)) {
            sum.merge(&gemini_part(part, true));
        }
    }
    sum
}

fn gemini_part(part: &Object, outer: bool) -> Sum {
    let mut sum = Sum::default();
    let mut known = false;
    for key in ["inlineData", "inline_data", "fileData", "file_data"] {
        if let Some(blob) = part.get(key).and_then(Value::as_object) {
            let kind = kind(blob, "mimeType").or_else(|| kind(blob, "mime_type"));
            count(&mut sum.media, kind.and_then(|kind| family(&kind)).unwrap_or("file"));
            known = true;
        }
    }
    if outer {
        sum.string(part.get("text"));
        known |= part.get("text").is_some_and(Value::is_string);
        for key in [
            "functionCall",
            "function_call",
            "executableCode",
            "executable_code",
            "codeExecutionResult",
            "code_execution_result",
        ] {
            let before = sum.tools;
            sum.json(part.get(key));
            known |= sum.tools > before;
        }
        for key in ["functionResponse", "function_response"] {
            if let Some(answer) = part.get(key).and_then(Value::as_object) {
                sum.json(answer.get("name"));
                sum.json(answer.get("response"));
                for part in one_or_more(answer.get("parts")) {
                    sum.merge(&gemini_part(part, false));
                }
                known = true;
            }
        }
    }
    sum.media.files += u64::from(!known);
    sum
}

fn generate(root: &Object, facts: &mut RequestFacts, sum: &mut Sum) {
    let each: Vec<[Cap; 2]> = one_or_more(root.get("sampling_params"))
        .into_iter()
        .map(|one| [integer(one.get("max_new_tokens")), integer(one.get("n"))])
        .collect();
    let largest = |all: Vec<Cap>, default: u64| match () {
        () if all.iter().all(|cap| *cap == Cap::Absent) => Cap::Absent,
        () if all.contains(&Cap::Unreadable) => Cap::Unreadable,
        () => Cap::Tokens(all.iter().map(|cap| cap.tokens().unwrap_or(default)).max().unwrap()),
    };
    let cap = largest(each.iter().map(|one| one[0]).collect(), 128);
    let n = largest(each.iter().map(|one| one[1]).collect(), 0);
    limits(facts, &[cap], &[n], Cap::Absent);
    sum.media.images += items(root.get("image_data"));
    sum.media.audio += items(root.get("audio_data"));
    sum.media.videos += items(root.get("video_data"));
    let n = facts.n;
    facts.n = n.min(1);
    let mut all = prompts(&[root.get("text"), root.get("input_ids")], None);
    if n > 1 && all.count() == 0 {
        facts.prompts = n;
        facts.largest = Some(Tally::default());
        return;
    }
    let times = usize::try_from(n.max(1)).unwrap().min(5000);
    let largest = (all.count() * n.max(1) > 1).then(|| all.largest());
    all.texts = vec![all.texts; times].concat();
    all.ids = all.ids.repeat(times);
    all.into_facts(facts, sum);
    facts.largest = largest;
}
